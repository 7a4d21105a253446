//! The scripts without one of their rules, each with what it breaks: see `tenure_core::mutants`.

use tenure_core::mutants_of_scripts;

mutants_of_scripts! { OF_LOCKS:
    "redis-release-of-any-hold",
        "type(held) == 'string' and is_plain(held, id) and (is_all_quiet", "type(held) == 'string' and (is_all_quiet";
    "redis-renewal-of-any-hold", "is_plain(held, id) and sub(held, 70, 77)", "sub(held, 70, 77)";
    "redis-cuts-what-it-confirmed", "or (confirmed and confirmed[woken.id]) then return end", "then return end";
    "redis-capacity-off-by-one", "record.used + weight <= record.capacity", "record.used + weight <= record.capacity + 1";
    "redis-last-in-first-out",
        "local head = call('ZRANGE', record.places, 0, 0)[1]\n    local stored",
        "local head = call('ZRANGE', record.places, -1, -1)[1]\n    local stored";
    "redis-newcomers-overtake", "if record.waiting == 0 and fits(record, claim.weight)", "if fits(record, claim.weight)";
    "redis-tokens-of-the-clock-alone", "local token = max(last + 1, now, above + 1)", "local token = now";
    "redis-finished-claims-forgotten", "if maybe_in_flight then finish(id) end", "";
    "redis-siblings-kept",
        "if kind ~= 'm' or (record.kind and record.kind ~= 'm') then", "if record.kind and record.kind ~= 'm' then";
    "redis-one-bad-key-fails-all", "return { 'E', tostring(text) }", "error(text)";
    "redis-foreign-hash-taken", "and is_count(head[2]) and is_count(head[3]) and is_count(head[4]) and is_count(head[5])", "";
    "redis-removes-all-the-dead-at-once", "'LIMIT', 0, PRUNED_MAX)", "'LIMIT', 0, 1000000)";
}

mutants_of_scripts! { OF_QUEUES:
    "redis-settled-after-the-end", "and ends_of(state) > now and not ended[claim]", "and not ended[claim]";
}
