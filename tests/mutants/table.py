"""The mutations: what each line guarantees, the line, what takes its place, and the tests that must fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A mutation.

    Attributes:
        rule: what the line guarantees.
        file: the file.
        line: text that occurs in it once.
        mutated: what takes its place.
        tests: the tests that must catch it.
    """

    rule: str
    file: str
    line: str
    mutated: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant(
        "an event is synced before it is acted on",
        "core/src/tpux/store/files.py",
        "                os.fsync(handle)\n",
        "                pass\n",
        ("tests/test_reliability.py::test_an_event_is_on_the_disk_before_it_is_acted_on",),
    ),
    Mutant(
        "a replaced file is synced before it takes the old one's place",
        "core/src/tpux/store/files.py",
        "                os.fsync(file.fileno())\n",
        "                pass\n",
        ("tests/test_reliability.py::test_a_replaced_file_is_on_the_disk_before_the_old_one_is_gone",),
    ),
    Mutant(
        "an event that is not written leaves nothing",
        "core/src/tpux/store/files.py",
        "            os.ftruncate(handle, end)\n",
        "            pass\n",
        ("tests/test_reliability.py::test_an_event_that_cannot_be_written_leaves_nothing",),
    ),
    Mutant(
        "a torn event is cut off before the next one",
        "core/src/tpux/store/record.py",
        "        events.truncate_torn_line(self.events_path)\n",
        "",
        ("tests/test_bad_store.py::test_a_torn_last_event_is_truncated_by_the_next_writer",),
    ),
    Mutant(
        "a torn event is not read",
        "core/src/tpux/store/events.py",
        '            if not line.endswith(b"\\n"):\n',
        "            if False:\n",
        ("tests/test_bad_store.py::test_a_torn_last_event_is_truncated_by_the_next_writer",),
    ),
    Mutant(
        "a snapshot that is newer than the events is not used",
        "core/src/tpux/store/record.py",
        "        if offset > length:\n",
        "        if False:\n",
        ("core/tests/test_store_state.py::test_a_snapshot_counts_only_with_its_events",),
    ),
    Mutant(
        "the snapshot is a cache: a full disk that prevents it loses no event",
        "core/src/tpux/store/record.py",
        "        except OSError:  # only a cache of the events",
        "        except ZeroDivisionError:  # only a cache of the events",
        ("tests/test_reliability.py::test_an_event_counts_although_its_snapshot_cannot_be_written",),
    ),
    Mutant(
        "a job that cannot be read counts as active",
        "core/src/tpux/store/leases.py",
        "        except (OSError, TpuxError):\n            return True\n",
        "        except (OSError, TpuxError):\n            return False\n",
        ("core/tests/test_store_leases.py::test_a_job_that_cannot_be_read_counts_as_active",),
    ),
    Mutant(
        "a job is active until it has released its machines",
        "core/src/tpux/store/leases.py",
        "return not state.done or state.requested",
        "return not state.ended",
        ("core/tests/test_store_leases.py::test_a_job_is_active_until_it_has_ended_and_released_its_machines",),
    ),
    Mutant(
        "from the first call on a release is required",
        "core/src/tpux/lifecycle/allocation.py",
        "            context.write(AllocationRequested(",
        "            (lambda event: None)(AllocationRequested(",
        ("tests/test_lifecycle.py::test_a_stop_while_queued_withdraws_the_request_at_once",),
    ),
    Mutant(
        "machines are not lost while the cloud does not answer",
        "core/src/tpux/lifecycle/run.py",
        '    if machines.status.state == "ready" and not watch.failure:\n',
        "    if not watch.failure:\n",
        ("tests/test_lost_workers.py::test_no_worker_is_lost_while_the_cloud_does_not_answer",),
    ),
    Mutant(
        "one more login is tried before a worker is lost",
        "core/src/tpux/lifecycle/run.py",
        "            poll.retry_at = 0.0\n",
        "            watch.failure = lost_worker_failure(context, index)\n",
        ("tests/test_lost_workers.py::test_the_cloud_is_asked_and_one_more_login_is_tried_before_a_worker_is_lost",),
    ),
    Mutant(
        "a worker is lost only after `watch.lost_after`",
        "core/src/tpux/lifecycle/lost_workers.py",
        "if worker.seconds > limit and",
        "if",
        ("tests/test_lost_workers.py::test_a_frozen_supervisor_loses_no_worker",),
    ),
    Mutant(
        "a transport that fails loses no worker",
        "core/src/tpux/lifecycle/lost_workers.py",
        "worker.seconds > limit and not worker.transport_failed",
        "worker.seconds > limit",
        ("tests/test_reliability.py::test_a_transport_that_fails_loses_no_worker",),
    ),
    Mutant(
        "a worker that was never reached is `unreachable`",
        "core/src/tpux/lifecycle/lost_workers.py",
        "    if context.was_reached(index):\n",
        "    if True:\n",
        ("tests/test_lost_workers.py::test_a_worker_that_was_never_reachable_has_its_own_kind",),
    ),
    Mutant(
        "an error on a worker ends no attempt",
        "core/src/tpux/lifecycle/run.py",
        "(isinstance(answer, PluginError) or not started):\n",
        "True:\n",
        ("tests/test_lost_workers.py::test_an_error_on_a_worker_ends_no_attempt",),
    ),
    Mutant(
        "earlier attempts are looked for before a start",
        "core/src/tpux/lifecycle/poll.py",
        "    if prepared.running:\n        raise _still_running(context, host, key)\n",
        "",
        ("tests/test_reliability.py::test_nothing_of_an_earlier_attempt_runs_beside_the_next",),
    ),
    Mutant(
        "leftover processes are awaited before an attempt is over",
        "core/src/tpux/lifecycle/run.py",
        "    if (delay := terminate_processes(context)) is not None and not context.connections.unreachable:\n        return Next(after=delay)\n",
        "    terminate_processes(context)\n",
        ("tests/test_reliability.py::test_an_attempt_ends_when_its_last_process_has_ended",),
    ),
    Mutant(
        "a program is not started twice",
        "core/src/tpux/lifecycle/poll.py",
        "    if context.state.run.running:  # the start was confirmed",
        "    if False:  # the start was confirmed",
        ("tests/test_reliability.py::test_a_confirmed_start_is_never_repeated",),
    ),
    Mutant(
        "an unanswered `provision` leaves a mark",
        "core/src/tpux/lifecycle/allocation.py",
        '        files.write_atomic(mark, b"")\n',
        "        pass\n",
        (
            "tests/test_crash_at_every_event.py",
            "tests/test_blocked_hooks.py::test_a_blocked_hook_is_reported_and_a_stop_ends_it",
        ),
    ),
    Mutant(
        "a release is confirmed by the allocator",
        "core/src/tpux/lifecycle/allocation.py",
        "    if isinstance(answer, Released):\n",
        "    if True:\n",
        ("tests/test_reliability.py::test_a_release_is_confirmed_before_the_job_is_deleted",),
    ),
    Mutant(
        "a request is acknowledged after it is applied",
        "core/src/tpux/lifecycle/advance.py",
        "        if step.change is not None:\n",
        "        if step.change is not None and request is None:\n",
        ("tests/test_requests.py::test_a_release_follows_a_plain_stop",),
    ),
    Mutant(
        "kept machines are released in real time",
        "core/src/tpux/lifecycle/allocation.py",
        "        left = context.deadlines.left(state.release_at, state.release_after)\n",
        "        left = state.release_at - context.clock.now()\n",
        ("tests/test_lost_workers.py::test_kept_machines_are_released_in_real_time",),
    ),
    Mutant(
        "a delete releases before the record is deleted",
        "core/src/tpux/lifecycle/advance.py",
        '    if request.action == "delete":\n        if state.requested and',
        '    if request.action == "delete":\n        if False and',
        ("tests/test_lifecycle.py::test_delete_releases_kept_machines_before_the_record_is_deleted",),
    ),
    Mutant(
        "unreachable workers buy new machines once",
        "core/src/tpux/lifecycle/policy.py",
        '    "unreachable": 1,\n',
        '    "unreachable": None,\n',
        ("tests/test_lost_workers.py::test_a_worker_that_was_never_reachable_has_its_own_kind",),
    ),
    Mutant(
        "a rule of a plugin buys new machines twenty times at most",
        "core/src/tpux/lifecycle/policy.py",
        "restarts.reapplied >= REAPPLY_CEILING",
        "False",
        ("core/tests/test_policy.py::test_the_answer_of_a_rule_plugin_is_final_and_core_adds_backoff_and_ceiling",),
    ),
    Mutant(
        "machines that will be deleted need no confirmed end",
        "core/src/tpux/lifecycle/tasks.py",
        "            if overdue or deletes_machines(context):\n",
        "            if overdue:\n",
        ("tests/test_lost_workers.py::test_machines_that_are_deleted_do_not_wait_for_unreachable_workers",),
    ),
    Mutant(
        "no two calls of a worker run at the same time",
        "core/src/tpux/remote/worker_calls.py",
        "            if call.worker in self._calls:\n",
        "            if False:\n",
        ("tests/test_hung_workers.py::test_a_worker_is_not_called_twice_at_the_same_time",),
    ),
    Mutant(
        "a stop interrupts a step that waits for a worker",
        "core/src/tpux/remote/worker_calls.py",
        "        if self._interrupted.is_set():\n            raise StepInterruptedError\n        if errors",
        "        if errors",
        ("tests/test_hung_workers.py::test_a_step_that_waits_for_all_workers_is_given_up",),
    ),
    Mutant(
        "a late answer is taken before the worker is called again",
        "core/src/tpux/remote/worker_calls.py",
        "            if index in self._pending or index in self._answers:",
        "            if index in self._pending:",
        ("tests/test_hung_workers.py::test_a_worker_is_not_called_again_before_its_late_answer_is_taken",),
    ),
    Mutant(
        "hung workers of one job leave threads to another",
        "core/src/tpux/remote/worker_calls.py",
        "            if self._active >= THREADS_OF_A_JOB:\n",
        "            if False:\n",
        ("tests/test_hung_workers.py::test_hung_workers_of_one_job_leave_threads_to_another",),
    ),
    Mutant(
        "a script that was cut off is not run",
        "core/src/tpux/remote/script.py",
        '    whole = f"{{\\n{text}\\nexit\\n}}\\n".encode(errors="surrogateescape")\n',
        '    whole = text.encode(errors="surrogateescape")\n',
        ("core/tests/remote/test_start.py::test_a_truncated_script_is_not_started",),
    ),
    Mutant(
        "a run that was started is never started again",
        "core/src/tpux/remote/scripts/start.sh",
        '! [ -e "$dir/started" ] && ',
        "",
        ("core/tests/remote/test_start.py::test_a_recorded_start_is_never_repeated",),
    ),
    Mutant(
        "a run that was stopped is not started",
        "core/src/tpux/remote/scripts/start.sh",
        ' && ! [ -e "$dir/stopped" ]; then',
        "; then",
        ("core/tests/remote/test_stop.py::test_a_run_that_was_stopped_before_its_start_is_not_started",),
    ),
    Mutant(
        "SIGTERM is sent once",
        "core/src/tpux/remote/scripts/stop.sh",
        'echo "$alive" >"$dir/signalled"',
        ":",
        ("core/tests/remote/test_stop.py::test_sigterm_is_sent_once",),
    ),
    Mutant(
        "a full disk fails no job",
        "core/src/tpux/supervisor/errors.py",
        "    if is_os_error or _is_repairable(",
        "    if _is_repairable(",
        ("tests/test_reliability.py::test_a_full_disk_fails_no_job",),
    ),
    Mutant(
        "no exception costs a job its next turn",
        "core/src/tpux/supervisor/scheduler.py",
        "        finally:\n            with self._guard:\n                self._finish_turn(",
        "        else:\n            with self._guard:\n                self._finish_turn(",
        ("core/tests/test_scheduler.py::test_no_exception_costs_a_job_its_next_turn",),
    ),
    Mutant(
        "a supervisor that is about to exit looks once more",
        "core/src/tpux/supervisor/scheduler.py",
        "            if shutdown or not self._has_work():\n",
        "            if True:\n",
        ("core/tests/test_scheduler.py::test_a_job_that_is_created_while_the_supervisor_ends_is_driven",),
    ),
    Mutant(
        "a waiting job gets a turn every minute",
        "core/src/tpux/supervisor/scheduler.py",
        "min(delay, LONGEST_DELAY)",
        "delay",
        ("core/tests/test_scheduler.py::test_a_waiting_job_gets_a_turn_every_minute",),
    ),
    Mutant(
        "a turn that blocks costs no other job its turn",
        "core/src/tpux/supervisor/turns.py",
        "                    self._blocked += 1\n",
        "                    pass\n",
        ("core/tests/test_scheduler.py::test_blocked_turns_cost_no_other_job_its_turn",),
    ),
    Mutant(
        "a TPU counts as released only once it is gone",
        "plugins/gcp/src/tpux_gcp/release.py",
        "    return pending or Released()\n",
        "    return Released()\n",
        ("plugins/gcp/tests/test_gcp_provision.py::test_release_after_any_number_of_steps",),
    ),
    Mutant(
        "only an owner deletes a TPU",
        "plugins/gcp/src/tpux_gcp/release.py",
        "    if not _may_delete(context, resource):\n        return None\n",
        "",
        ("plugins/gcp/tests/test_gcp_ownership.py::test_a_tpu_recreated_by_somebody_else_is_not_ours",),
    ),
    Mutant(
        "ownership needs all labels",
        "plugins/gcp/src/tpux_gcp/labels.py",
        "    return all(labels.get",
        "    return any(labels.get",
        (
            "plugins/gcp/tests/test_gcp_ownership.py::test_a_live_jobs_tpu_is_rejected_with_its_id",
            "plugins/gcp/tests/test_gcp_ownership.py::test_a_tpu_of_another_store_is_rejected",
        ),
    ),
    Mutant(
        "a live job's TPU is another's",
        "plugins/gcp/src/tpux_gcp/labels.py",
        "    if labels[STORE] == ours[STORE] and not is_active(labels[JOB]):\n",
        "    if labels[STORE] == ours[STORE]:\n",
        ("plugins/gcp/tests/test_gcp_ownership.py::test_a_live_jobs_tpu_is_rejected_with_its_id",),
    ),
    Mutant(
        "a creation that was not answered is waited for",
        "plugins/gcp/src/tpux_gcp/release.py",
        "    if (left := since + limit - now) <= 0:\n",
        "    if (left := since + limit - now) is not None:\n",
        ("plugins/gcp/tests/test_gcp_crash_recovery.py::test_a_release_waits_for_a_creation_that_was_not_answered",),
    ),
    Mutant(
        "a TPU is looked for again after its creation has ended",
        "plugins/gcp/src/tpux_gcp/release.py",
        "    if failure is not None or saved.observed_state:\n",
        "    if failure is not None or saved.operation or saved.observed_state:\n",
        ("plugins/gcp/tests/test_gcp_crash_recovery.py::test_release_looks_again_after_a_creation_that_ended",),
    ),
    Mutant(
        "a TPU is absent only if it is looked for after the end of its creation",
        "plugins/gcp/src/tpux_gcp/release.py",
        "    return context, pending if resource is None else Exists(resource)\n",
        "    return context, pending\n",
        ("plugins/gcp/tests/test_gcp_existence.py::test_absent_is_never_said_of_what_exists_or_is_being_created",),
    ),
    Mutant(
        "a lease ends with the borrowing",
        "plugins/gcp/src/tpux_gcp/provision.py",
        "        release_lease(context.lease_name, context.request.labels)\n        return context.restart_candidate()",
        "        return context.restart_candidate()",
        ("plugins/gcp/tests/test_gcp_ownership.py::test_a_tpu_that_a_job_no_longer_borrows_is_not_leased",),
    ),
    Mutant(
        "machines that were taken over have the labels of an active job",
        "core/src/tpux/store/leases.py",
        "unchanged = state.requested and state.takes_over and state.taken_from == state.takes_over",
        "unchanged = False",
        (
            "core/tests/test_store_leases.py::test_a_job_is_active_while_the_machines_that_another_has_taken_over_have_its_labels",
        ),
    ),
    Mutant(
        "the giver knows of a takeover also if the taker was stopped",
        "core/src/tpux/lifecycle/transfer.py",
        " and not (holds and taker.ended)",
        "",
        ("tests/test_takeover.py::test_a_taker_that_is_stopped_before_it_has_changed_the_labels",),
    ),
    Mutant(
        "a node is not requested again while the first request may take effect",
        "plugins/gcp/src/tpux_gcp/provision.py",
        "        if context.queue and not context.saved.operation:",
        "        if not context.saved.operation:",
        (
            "plugins/gcp/tests/test_gcp_crash_recovery.py::test_a_node_is_not_requested_again_while_the_first_request_may_take_effect",
        ),
    ),
    Mutant(
        "the intent to create is saved before the creation",
        "plugins/gcp/src/tpux_gcp/provision.py",
        "    if not saved.sent_at or saved.request_id not in about_to_send:\n",
        "    if False:\n",
        ("plugins/gcp/tests/test_gcp_crash_recovery.py::test_a_release_waits_for_a_creation_that_was_cut_off",),
    ),
    Mutant(
        "a quota concerns one combination",
        "plugins/gcp/src/tpux_gcp/errors.py",
        'NO_CAPACITY: frozenset[ProblemKind] = frozenset({"stockout", "quota-used"})',
        'NO_CAPACITY: frozenset[ProblemKind] = frozenset({"stockout"})',
        ("plugins/gcp/tests/test_gcp_stockout.py::test_a_rejected_creation_concerns_one_candidate",),
    ),
    Mutant(
        "an API error is unknown, never gone",
        "plugins/gcp/src/tpux_gcp/allocators.py",
        '        return MachineStatus("unknown", evidence=str(error), poll_after=POLL)\n',
        '        return MachineStatus("gone", evidence=str(error), poll_after=POLL)\n',
        ("plugins/gcp/tests/test_gcp_provision.py::test_an_api_error_is_unknown_and_deletes_nothing",),
    ),
    Mutant(
        "what is mounted in a preempted local worker is not deleted",
        "plugins/local/src/tpux_local/allocator.py",
        "            if not unmount(preempted):\n",
        "            if True:\n",
        ("plugins/local/tests/test_allocator.py::test_a_bucket_mounted_in_a_worker_keeps_its_content",),
    ),
    Mutant(
        "a job is not deleted with what is mounted in it",
        "core/src/tpux/store/__init__.py",
        "        files.refuse_mounts(record.directory)\n",
        "",
        ("core/tests/test_store_files.py::test_a_job_is_not_removed_with_what_is_mounted_in_it",),
    ),
    Mutant(
        "the password of a package index does not stay on a worker",
        "plugins/venv/src/tpux_venv/scripts.py",
        '    . "$settings"\n    rm -f "$settings"\n',
        '    . "$settings"\n',
        ("tests/test_secrets.py::test_no_secret_is_left_anywhere",),
    ),
    Mutant(
        "a mount that does not answer is replaced",
        "plugins/gcsfuse/src/tpux_gcsfuse/scripts.py",
        "    if ! problem=$(answers); then\n        case",
        "    if false; then\n        case",
        ("plugins/gcsfuse/tests/test_mounts.py::test_a_mount_whose_server_died_or_hangs_is_replaced",),
    ),
    Mutant(
        "a job does nothing with machines that another one takes over",
        "core/src/tpux/lifecycle/allocation.py",
        "    if state.given_to:\n        return transfer.hand_over(context)\n",
        "    if False:\n        return transfer.hand_over(context)\n",
        ("tests/test_takeover.py::test_one_job_holds_the_machines_wherever_a_supervisor_dies",),
    ),
    Mutant(
        "machines that were taken over are not taken back",
        "core/src/tpux/lifecycle/transfer.py",
        "    if taker is None or not holds:\n",
        "    if True:\n",
        ("tests/test_takeover.py::test_one_job_holds_the_machines_wherever_a_supervisor_dies",),
    ),
    Mutant(
        "nothing is done with the jobs of a copied store",
        "core/src/tpux/store/identity.py",
        "    if identity.inode in {None, home.stat().st_ino}:\n",
        "    if True:\n",
        ("core/tests/test_store_identity.py::test_a_copy_claims_nothing",),
    ),
]
