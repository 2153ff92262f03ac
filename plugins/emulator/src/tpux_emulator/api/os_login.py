"""The OS Login API's methods that read a user's profile, and import a public key into it."""

from __future__ import annotations

import base64
import binascii
import hashlib

from tpux_emulator.api.call import Call, Method
from tpux_emulator.cloud.records import LoginProfile
from tpux_emulator.errors import invalid
from tpux_emulator.messages import SshPublicKey
from tpux_emulator.protojson import JsonObject


def _import_ssh_public_key(call: Call) -> JsonObject:
    """Add a key to a profile, which exists from then on.

    Raises:
        ApiError: 400 if it is not a public key.
    """
    request = call.body(SshPublicKey)
    words = (request.key or "").split()
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (IndexError, binascii.Error) as error:
        raise invalid("Invalid SSH public key.", "ssh_public_key.key") from error
    user, project = call.path["user"], call.query.get("projectId", "")
    profile = call.cloud.profiles.get(user) or LoginProfile(email=user)
    keys = {**profile.keys, hashlib.sha256(blob).hexdigest(): " ".join(words)}
    call.cloud.change_profile(profile.model_copy(update={"keys": keys}))
    return {"loginProfile": _message(call.cloud.profiles[user], project)}


def _get_login_profile(call: Call) -> JsonObject:
    """Return a user's profile: each user has one, gcloud asks for it before it imports a key."""
    user = call.path["user"]
    return _message(call.cloud.profiles.get(user) or LoginProfile(email=user), call.query.get("projectId", ""))


def _message(profile: LoginProfile, project: str) -> JsonObject:
    name = f"users/{profile.email}"
    account: JsonObject = {
        "primary": True,
        "username": profile.username,
        "uid": "1234567890",
        "gid": "1234567890",
        "homeDirectory": f"/home/{profile.username}",
        "operatingSystemType": "LINUX",
        "accountId": project,
        "name": f"{name}/projects/{project}",
    }
    keys: JsonObject = {
        digest: {"key": key, "fingerprint": digest, "name": f"{name}/sshPublicKeys/{digest}"}
        for digest, key in profile.keys.items()
    }
    return {"name": profile.email, "posixAccounts": [account], "sshPublicKeys": keys}


METHODS = [
    Method(
        "oslogin.users.getLoginProfile",
        "GET",
        "/v1/users/{user}/loginProfile",
        _get_login_profile,
        frozenset({"projectId", "systemId", "view"}),
    ),
    Method(
        "oslogin.users.importSshPublicKey",
        "POST",
        "/v1/users/{user}:importSshPublicKey",
        _import_ssh_public_key,
        frozenset({"projectId", "regions"}),
    ),
]
