"""The page of `tpux web` in a real browser: Chromium without a window, as the distribution packages it."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.web_server import Web, serving

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
PAGES = ("jobs", "jobs/1", "machines", "queue")
SIZES = ({"width": 390, "height": 844}, {"width": 1280, "height": 800})
LOOP = "job: {name: llama}\ncommand: {cmd: 'echo step 7 loss 0.5; exec sleep 300'}\n"
expect.set_options(timeout=30_000)


@contextmanager
def chromium(*options: str) -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *options])
        yield browser
        browser.close()


@pytest.fixture
def browser():
    with chromium() as one:
        yield one


class Problems(list[str]):
    """What no page may do: ask another host for something, violate its own policy, or raise an error."""

    def watch(self, context: BrowserContext) -> None:
        context.on("request", self._requested)
        context.on("console", lambda message: self.append(message.text) if message.type == "error" else None)
        context.on("weberror", lambda error: self.append(str(error.error)))

    def _requested(self, request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and url.hostname not in ("127.0.0.1", "localhost"):
            self.append(f"request of {request.url}")


@pytest.fixture
def problems():
    found = Problems()
    yield found
    assert not found


@pytest.fixture
def job(tpux):
    """A job that has ended, whose output a test may write to: nothing else does."""
    made = tpux.create("job: {name: llama}\ncommand: {cmd: 'echo step 1 loss 0.9; echo step 2 loss 0.8'}\n")
    tpux("wait", made)
    return made


@pytest.fixture
def log(tpux, job):
    return tpux.directory(job) / "logs/attempt-1/command_worker_0.log"


@pytest.fixture
def web(tpux, job):
    with serving(tpux, "--port", "0") as one:
        yield one


def visit(browser: Browser, web: Web, problems: Problems, path: str = "jobs/1", **options) -> Page:
    """Open a page in a new profile of the browser."""
    context = browser.new_context(**options)
    problems.watch(context)
    return tab(context, web, path, token=True)


def tab(context: BrowserContext, web: Web, path: str, *, token: bool = False) -> Page:
    page = context.new_page()
    page.goto(f"{web.url}/{path}" + (f"#token={web.token}" if token else ""))
    return page


def append(log, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_a_line_is_on_the_page_a_moment_after_it_was_written(browser, web, log, problems):
    page = visit(browser, web, problems)
    expect(page.locator("#log")).to_contain_text("step 2 loss 0.8")
    for number in range(5):
        append(log, f"line {number}\n")
        page.locator("#log").get_by_text(f"line {number}", exact=True).wait_for(timeout=3000)  # three times the target
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""


def test_what_a_program_prints_is_text(browser, web, log, problems):
    page = visit(browser, web, problems)
    evil = "<script>document.title='x'</script><img src=x onerror=\"document.title='x'\"><b>bold</b>"
    append(
        log, f"{evil}\n\x1b[31m{evil}red\x1b[0m\n\x1b]8;;https://evil.example\x07{evil}\x1b]8;;\x07\n\x1b]0;title\x07\n"
    )
    append(log, "10%\r50%\rdone 100%\n\x1b[38;2;1;2;3mcolour\x1b[0m \x1b[2Jend\n")
    expect(page.locator("#log")).to_contain_text("end")
    text = page.locator("#log").inner_text()
    assert text.count(evil) == 3
    assert "done 100%" in text
    assert "50%" not in text
    assert page.locator("#log :not(div):not(span)").count() == 0
    assert page.locator("#log span.ansi-red-fg").count() == 1
    assert page.title() == "1 llama: tpux"


def test_a_name_of_another_host_that_leads_here_gets_nothing(web, problems):
    with chromium("--host-resolver-rules=MAP evil.example 127.0.0.1") as browser:
        page = browser.new_page()
        for path in ("jobs", "api/stream?topic=jobs/1/"):
            answer = page.goto(f"http://evil.example:{web.port}/{path}#token={web.token}")
            assert answer is not None
            assert answer.status == 403


def test_another_site_can_neither_read_post_nor_frame(browser, tpux, job):
    with serving(tpux, "--port", "0", "--allow-actions") as web:
        html = f"""<iframe src="{web.url}/jobs/1"></iframe><script>
            const auth = {{headers: {{Authorization: "Bearer {web.token}"}}}};
            const path = "{web.url}/api/jobs/1/actions/delete";
            const body = JSON.stringify({{state: "succeeded"}});
            const tries = [fetch("{web.url}/jobs"), fetch(path, auth), fetch(path, {{method: "POST", body, ...auth}}),
              fetch(path, {{method: "POST", body, mode: "no-cors"}}).then(() => {{ throw 0; }})];
            Promise.allSettled(tries).then((all) => document.title = all.map((one) => one.status).join());
            </script>"""

        class Evil(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(html.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Evil)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("document.title.includes('rejected')")
        assert page.title() == "rejected,rejected,rejected,rejected"
        assert not any(frame.url.startswith(web.url) and "llama" in frame.content() for frame in page.frames)
        assert len(page.frames[1].query_selector_all("main")) == 0
        server.shutdown()
        server.server_close()
    assert tpux.directory(job).is_dir()


def test_many_tabs_share_one_stream(browser, web, log, problems):
    page = visit(browser, web, problems)
    tabs = [page, *(tab(page.context, web, "jobs/1") for _ in range(8))]
    for one in tabs:
        expect(one.locator("#log")).to_contain_text("step 2 loss 0.8")
    append(log, "for all\n")
    for one in tabs:
        expect(one.locator("#log")).to_contain_text("for all")
    connections = Path("/proc/net/tcp").read_text().splitlines()
    held = sum(f":{web.port:04X} " in line and " 01 " in line for line in connections)
    assert held < 2 * 7, "two ends of each connection; a browser has six to a host at most"


def test_after_a_restart_the_page_goes_on_where_it_was(browser, tpux, job, log):
    found = Problems()
    with serving(tpux, "--port", "0") as web:
        port = web.port
        page = visit(browser, web, found)
        expect(page.locator("#log")).to_contain_text("step 2 loss 0.8")
        web.process.kill()
        web.process.wait()
    append(log, "while it was down\n")
    expect(page.locator("#status")).to_contain_text("no connection")
    with serving(tpux, "--port", str(port)) as web:
        expect(page.locator("#status")).to_contain_text("locked")
        tab(page.context, web, "jobs", token=True)  # the new address, opened in any tab
        expect(page.locator("#log")).to_contain_text("while it was down")
        append(log, "after it\n")
        expect(page.locator("#log")).to_contain_text("after it")
        lines = page.locator("#log .line").all_inner_texts()
    assert lines == ["step 1 loss 0.9", "step 2 loss 0.8", "while it was down", "after it"]


def test_without_a_token_a_page_says_what_to_do(browser, web, problems):
    page = tab(browser.new_context(), web, "jobs/1")
    expect(page.locator("#status")).to_contain_text("open the address that `tpux web` has printed")
    assert "llama" not in page.content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_each_page_fits(tpux, browser, web, log, problems, scheme):
    append(log, "\x1b[31mred\x1b[0m \x1b[34mblue\x1b[0m \x1b[90mgrey\x1b[0m\n")
    failed = tpux.create("job: {name: bad}\ncommand: {cmd: 'echo no; exit 3'}\n")
    tpux("wait", failed, code=100)
    for size in SIZES:
        page = visit(browser, web, problems, "jobs", viewport=size, color_scheme=scheme)
        for path in (*PAGES, f"jobs/{int(failed)}"):
            page.goto(f"{web.url}/{path}")
            expect(page.locator("#status")).to_have_text("live")
            expect(page.locator("h1")).not_to_be_empty()
            if path.startswith("jobs/"):
                expect(page.locator("#log .line").first).to_be_visible()
                page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            result = Axe().run(page)
            assert result.violations_count == 0, f"{path} {size} {scheme}\n{result.generate_report()}"
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is wider than {size}"


def test_the_keyboard_is_enough(tpux, browser):
    job = tpux.create(LOOP)
    tpux.until_state(job, "running")
    with serving(tpux, "--port", "0", "--allow-actions") as web:
        found = Problems()
        page = visit(browser, web, found, "jobs")
        expect(page.get_by_role("link", name="llama")).to_be_visible()

        def go_to(name: str) -> None:
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement.textContent || document.activeElement.id") == name:
                    return
            raise AssertionError(f"Tab never comes to {name}")

        go_to("filter")
        page.keyboard.type("state:failed")
        expect(page.locator(".empty")).to_have_text("no job has all of these words")
        assert "q=state%3Afailed" in page.url
        page.keyboard.press("Control+A")
        page.keyboard.type("llama")
        expect(page.get_by_role("link", name="llama")).to_be_visible()
        go_to("llama")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(f"{int(job)} llama")
        expect(page.get_by_role("button", name="stop")).to_be_visible()
        go_to("stop")
        page.keyboard.press("Enter")
        expect(page.locator("#question")).to_contain_text("would stop")
        page.keyboard.press("Enter")  # the button that has the focus is No
        expect(page.locator("dialog")).not_to_be_visible()
        assert page.evaluate("document.activeElement.textContent") == "stop"
        page.keyboard.press("Enter")
        expect(page.locator("#question")).to_contain_text(f"stop job {int(job)} (llama), running, which holds")
        assert tpux.show(job)["state"] == "running"
        expect(page.locator("#yes")).to_be_enabled()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#answer")).to_contain_text(f"job {int(job)}")
        page.keyboard.press("Escape")
        expect(page.locator("#state")).to_contain_text("stopped")
        assert not found
    tpux("delete", "-y", job)


def test_what_has_the_focus_keeps_it_while_the_table_changes(tpux, browser, web, problems):
    page = visit(browser, web, problems, "jobs")
    page.get_by_role("link", name="llama").focus()
    page.evaluate("getSelection().selectAllChildren(document.activeElement); window.kept = document.activeElement")
    other = tpux.create("job: {name: second}\ncommand: {cmd: 'true'}\n")
    tpux("wait", other)
    expect(page.get_by_role("link", name="second")).to_be_visible()
    expect(page.locator("#counts")).to_have_text("2 succeeded")
    assert page.evaluate("document.activeElement === window.kept && String(getSelection())") == "llama"
    ids = page.locator("tbody th").all_inner_texts()
    assert ids == ["2", "1"]


def test_scrolling_up_ends_the_following_and_nothing_moves(browser, web, log, problems):
    append(log, "".join(f"number {number}\n" for number in range(30_000)))
    page = visit(browser, web, problems, viewport=SIZES[1])
    expect(page.locator("#log")).to_contain_text("number 29999")
    pane = page.locator("#log")
    pane.focus()
    page.keyboard.press("Home")
    expect(page.locator("#follow")).not_to_be_checked()
    expect(pane).to_have_js_property("scrollTop", 0)  # it glides there
    append(log, "one more\n")
    page.get_by_role("button", name="1 new lines").wait_for()
    assert pane.evaluate("node => node.scrollTop") == 0
    first = page.locator("#log .line").first.inner_text()
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.locator("#log .line").first).not_to_have_text(first)
    numbers = [int(text) for text in re.findall(r"number (\d+)", pane.inner_text())]
    assert numbers == [*range(numbers[0], 30_000)]
    page.get_by_role("button", name="1 new lines").click()
    expect(page.locator("#follow")).to_be_checked()
    page.get_by_label("Search").fill("number 29998")
    assert page.locator("#log .line:visible").all_inner_texts() == ["number 29998"]


def test_a_flood_of_lines_leaves_the_page_usable(browser, web, log, problems):
    page = visit(browser, web, problems)
    expect(page.locator("#log")).to_contain_text("step 2 loss 0.8")
    for second in range(5):
        append(log, "".join(f"{second} {number} {'x' * 80}\n" for number in range(4000)))
        page.wait_for_timeout(500)
    append(log, "the last\n")
    expect(page.locator("#log")).to_contain_text("the last")
    assert page.locator("#log .line").count() <= 5000
    page.get_by_label("Wrap").click()
    expect(page.locator("#log")).not_to_have_class("wrapped")
