-- Sets the value of a resource under a hold. Takes: the claim's id, the bytes, and for how long they are fresh
-- and then stale; two empty texts keep them as long as the hold. 1: done, 0: the hold has ended.

operation('publish', {}, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local id, bytes, fresh, stale = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
  local record = read(KEYS[5])
  if record.is_bad then return { padded(now), 0 } end
  settle(record)
  local hold = hold_of(record, id)
  if not hold then
    write(record)
    tell()
    return { padded(now), 0 }
  end
  call('DEL', record.value)
  call('HSET', record.value, 'bytes', bytes, 'token', digits(hold.token), 'fresh', digits(t + (fresh or 0)),
    'keep', fresh and digits(t + fresh + stale) or '')
  if fresh then
    keep_value(record, t + fresh + stale)
  else
    -- Whoever renews or ends the hold has to mind the value too.
    hold.flag = 'v'
    put_hold(record, hold)
    keep_value(record, hold.ends)
  end
  if (fresh or 0) > 0 and record.waiting > 0 then
    local ids = call('ZRANGE', record.places, 0, -1)
    for from = 1, #ids, PRUNED_MAX do
      local to, answered = min(from + PRUNED_MAX - 1, #ids), {}
      for at, text in ipairs(call('HMGET', record.waiters, unpack(ids, from, to))) do
        local id = ids[from + at - 1]
        local waiter = text and sub(text, 1, 1) == '1' and unpack_party(id, sub(text, 3))
        if waiter then
          answered[#answered + 1] = id
          wake({ id = id, client = waiter.client })
        end
      end
      if answered[1] then remove_waiters(record, answered) end
    end
  end
  grant_waiters(record)
  write(record)
  tell()
  return { padded(now), 1 }
end)
