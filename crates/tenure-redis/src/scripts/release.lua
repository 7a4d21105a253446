-- Ends holds and withdraws waiters. Each takes: its id, whether a copy of its claim may be under way, and whether
-- the grant never reached its user. 1: released, 0: there was nothing.

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

insist()
local answers = { padded(now) }
for i = 1, #KEYS - 4 do
  local key, at = KEYS[i + 4], 3 * i + 1
  local id = ARGV[at]
  local held = redis.pcall('GET', key)
  if type(held) ~= 'string' then held = nil end
  -- The common case: a mutex without anything special, and nobody waits.
  if held and sub(held, 1, 35) == id .. ' - ' and is_quiet(key, id) then
    call('DEL', key)
    answers[i + 1] = 1
  else
    local record = read(key, held)
    if record.is_bad then
      answers[i + 1] = 0
    else
      settle(record)
      answers[i + 1] = decide(record, id, ARGV[at + 2] == '1')
      grant_waiters(record)
      write(record)
    end
  end
  if ARGV[at + 1] == '1' then finish(id) end
end
tell()
return answers
