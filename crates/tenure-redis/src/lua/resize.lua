-- An operator changes the capacity. Takes: the capacity. 1: done, 0: the kind has none to change.

operation('resize', {}, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local capacity = tonumber(ARGV[4])
  local record = read(KEYS[5])
  if record.is_bad then return { padded(now), 0 } end
  settle(record)
  if record.kind and record.kind ~= 's' and record.kind ~= 'p' then
    write(record)
    tell()
    return { padded(now), 0 }
  end
  if record.kind then
    -- What they wait for is about to be changed: it must be this (`grant_waiters`).
    if record.waiting > 0 and call('HGET', record.waiters, 'kind') ~= awaited(record) then forget_line(record) end
    local old = record.capacity
    record.capacity = capacity
    -- Only where some may go: a list that is made anew without any other change would get no expiry.
    if record.fresh > capacity and capacity < old then
      local slots = call('LRANGE', record.free, 0, -1)
      call('DEL', record.free)
      for _, slot in ipairs(slots) do
        if tonumber(slot) < capacity then call('RPUSH', record.free, slot) end
      end
    end
    -- Slots that were taken away before, and come back: free since now, for they may just have been held.
    if record.kind == 'p' and old < min(capacity, record.fresh) then
      local held = {}
      for _, token in ipairs(call('ZRANGE', record.holds, 0, -1)) do
        local hold = hold_with(record, token)
        if hold then held[hold.slot] = true end
      end
      for slot = old, min(capacity, record.fresh) - 1 do
        if not held[digits(slot)] then call('RPUSH', record.free, slot) end
      end
    end
    -- What can never fit any more would block everybody behind it for ever.
    if record.waiting > 0 then
      call('HSET', record.waiters, 'kind', awaited(record))
      for _, waiter in ipairs(call('ZRANGE', record.places, 0, -1)) do
        local terms = waiter_of(record, waiter)
        if not terms or terms.weight > capacity then
          remove_waiter(record, waiter)
          finish(waiter)
        end
      end
    end
  end
  grant_waiters(record)
  write(record)
  tell()
  return { padded(now), 1 }
end)
