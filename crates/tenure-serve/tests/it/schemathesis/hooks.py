"""What no schema says, so that requests which are made to be right are right: what goes together, and what waits."""

import schemathesis

PERIODS = ("max_hold_ms", "min_hold_ms", "lock_delay_ms", "floor")
NAMES = ("name", "queue", "group", "dedup")


def together(body):
    kind = body.get("kind", "mutex")
    if kind != "semaphore":
        body.pop("weight", None)
    if kind != "rw_lock":
        body.pop("exclusive", None)
    if kind in ("semaphore", "slot_pool"):
        body["capacity"] = body.get("capacity") or 3
        if body.get("weight") is not None:
            body["weight"] = min(body["weight"], body["capacity"])
    else:
        body.pop("capacity", None)
    if kind != "mutex":
        body.pop("unless_fresh", None)
    if body.get("unless_fresh"):
        for field in PERIODS:
            body.pop(field, None)
    if body.get("wait") is False:
        body.pop("poll_ms", None)


def whole(value):
    """1.0 is an integer to a schema, and none to the server."""
    if isinstance(value, dict):
        return {field: whole(value) for field, value in value.items()}
    if isinstance(value, list):
        return [whole(value) for value in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_long(text):
    return isinstance(text, str) and len(text.encode("utf-8", "surrogatepass")) > 255


@schemathesis.hook
def filter_case(context, case):
    # A limit in bytes is none that a schema can say.
    for part in (case.body, case.query or {}):
        if isinstance(part, dict) and any(is_long(part.get(field)) for field in NAMES):
            return False
    return True


@schemathesis.hook
def map_case(context, case):
    path, body = case.operation.path, case.body
    if not (case.meta and case.meta.generation.mode.is_positive):
        return case
    if isinstance(body, dict):
        body = case.body = whole(body)
        if path == "/v1/claims/{claim}":
            together(body)
        # It says nothing without a period.
        if path == "/v1/queue/take" and body.get("interval_ms") is None:
            body.pop("interval_of", None)
    # Some are about one claim, so that there is something to renew and to publish under.
    ids = case.path_parameters or {}
    if path.startswith("/v1/claims/") and case.operation.method.upper() != "DELETE" and isinstance(body, dict):
        if str(ids.get("claim", "1"))[-1] in "02468ace":
            ids["claim"], body["name"] = "6f" + "0" * 30, "billing/4711"
    if path == "/v1/resources" and case.query and "after" in case.query:
        case.query.pop("offset", None)
        case.query.pop("sort", None)
    # It is for Unix sockets.
    if case.query:
        case.query.pop("on_disconnect", None)
    return case


@schemathesis.hook
def before_call(context, case, kwargs):
    # Nobody waits for half a minute.
    if isinstance(case.body, dict) and case.operation.path in ("/v1/claims/{claim}", "/v1/queue/take"):
        if case.body.get("poll_ms", 25000) is None or (
            "poll_ms" not in case.body and case.body.get("wait") is not False
        ):
            case.body["poll_ms"] = 1
        elif isinstance(case.body.get("poll_ms"), int) and 1 < case.body["poll_ms"] <= 50000:
            case.body["poll_ms"] = 1
