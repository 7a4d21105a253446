-- Withdraws claims that were left behind: waiters, and grants to them of which nobody has heard. Takes the id of each,
-- and then for each run of alike ones: how many, and whose they were. 1: withdrawn, 0: there was nothing, 2: it goes on.

-- No mark says that a hold is confirmed. Its end does, for a renewal moves it beyond the confirm window. Where that is
-- not so, or the clock has been set back since the grant, nobody knows, and the hold goes on.
local function is_surely_unconfirmed(hold)
  local is_told = hold.ttl > CONFIRM_WINDOW_MAX and (hold.max == 0 or hold.max > CONFIRM_WINDOW_MAX)
  local granted = floor(hold.granted / 1000)
  return is_told and granted <= t and hold.ends <= granted + CONFIRM_WINDOW_MAX
end

local function decide(record, id, client)
  local hold = hold_of(record, id)
  if hold then
    if hold.client ~= client or not is_surely_unconfirmed(hold) then return 2 end
    end_hold(record, hold, floor(min(hold.granted, now) / 1000))
    return 1
  end
  local waiter = record.waiting > 0 and call('ZSCORE', record.places, id) and waiter_of(record, id)
  if not waiter then return 0 end
  if waiter.client ~= client then return 2 end
  remove_waiter(record, id)
  return 1
end

local function withdraw(key, id, client)
  local record = read(key)
  if record.is_bad then return 0 end
  settle(record)
  local answer = decide(record, id, client)
  grant_waiters(record)
  write(record)
  return answer
end

operation('withdraw', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local answers = { padded(now) }
  local i, run = 0, #KEYS
  while i < #KEYS - 4 do
    local client = ARGV[run + 1]
    for _ = 1, tonumber(ARGV[run]) do
      i = i + 1
      local id = ARGV[i + 3]
      local answer, fault = guard(withdraw, KEYS[i + 4], id, client)
      if fault then
        tell()
        return fault
      end
      answers[i + 1] = answer
      -- A copy of it may still be under way.
      if answer == 0 or answer == 1 then finish(id) end
    end
    run = run + 2
  end
  tell()
  return answers
end)
