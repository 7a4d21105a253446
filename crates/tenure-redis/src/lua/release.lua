-- Ends holds and withdraws waiters. Takes the id of each, and then for each run of alike ones: how many, whether a
-- copy of the claim may be under way, and whether the grant never reached its user. 1: released, 0: there was nothing.

local function decide(record, id, is_unused)
  local hold = hold_of(record, id)
  if hold then
    -- Counted from now where that is sooner: the clock has been set back since the grant.
    local rest = is_unused and 0 or hold.min
    end_hold(record, hold, floor(min(hold.granted, now) / 1000) + rest)
    return 1
  end
  if record.waiting > 0 and call('ZSCORE', record.places, id) then
    remove_waiter(record, id)
    return 1
  end
  return 0
end

local function uncommon(key, id, is_unused, held)
  local record = read(key, held)
  if record.is_bad then return 0 end
  settle(record)
  local answer = decide(record, id, is_unused)
  grant_waiters(record)
  write(record)
  return answer
end

operation('release', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local answers = { padded(now) }
  local i, run = 0, #KEYS
  while i < #KEYS - 4 do
    local maybe_in_flight, is_unused = ARGV[run + 1] == '1', ARGV[run + 2] == '1'
    for _ = 1, tonumber(ARGV[run]) do
      i = i + 1
      local key, id = KEYS[i + 4], ARGV[i + 3]
      local held = try('GET', key)
      -- The common case: a mutex without anything special, and nobody waits.
      if type(held) == 'string' and is_plain(held, id) and (is_all_quiet or is_quiet(key, id)) then
        call('DEL', key)
        answers[i + 1] = 1
      else
        local answer, fault = guard(uncommon, key, id, is_unused, held)
        if fault then
          tell()
          return fault
        end
        answers[i + 1] = answer
      end
      if maybe_in_flight then finish(id) end
    end
    run = run + 3
  end
  tell()
  return answers
end)
