-- Ends deliveries. Takes for each: the claim, and what becomes of the item: `a` it is done; `r`, after how long, the most
-- attempts (0: any number) and why; `f` and why; `b` it goes back. Answers 1: done so, 2: it is a dead letter now, 0: the
-- delivery had ended.

local function settle(ARGV, at, lane, state)
  local first, rests = sub(state, 1, 16), rests_of(state)
  local what = ARGV[at]
  if what == 'a' then
    advance(lane, first, rests)
    forget_context(first)
    return 1
  end
  local attempts = attempts_of(state)
  if what == 'f' then
    bury(lane, first, rests, attempts, ARGV[at + 1])
    return 1
  end
  local ready = now
  if what == 'r' then
    local attempts_max = tonumber(ARGV[at + 2])
    if attempts_max > 0 and attempts >= attempts_max then
      bury(lane, first, rests, attempts, ARGV[at + 3])
      return 2
    end
    ready = now + tonumber(ARGV[at + 1])
  else
    attempts = attempts - 1
  end
  later(SET_STATES, lane, state_of(first, sub(state, 81, 96), attempts))
  set_ready(lane, first, max(ready, rests))
  return 1
end

-- How many arguments there are for each letter, with the claim and itself.
local LENGTHS = { a = 2, b = 2, f = 3, r = 5 }

operation('settle', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local claims, places = {}, {}
  local i = 4
  while ARGV[i] do
    claims[#claims + 1], places[#places + 1] = ARGV[i], i + 1
    i = i + LENGTHS[ARGV[i + 1]]
  end
  local lanes = call('HMGET', CLAIMS, unpack(claims))
  for at, lane in ipairs(lanes) do lanes[at] = lane or '' end
  local states, answers, ended = states_of(lanes), { now_text }, {}
  for at, claim in ipairs(claims) do
    local state = states[at]
    if state and claim_of(state) == claim and ends_of(state) > now and not ended[claim] then
      ended[claim] = true
      later(DEL_CLAIMS, claim)
      answers[at + 1] = settle(ARGV, places[at], lanes[at], state)
    else
      answers[at + 1] = 0
    end
    end_request()
  end
  finish()
  return answers
end)
