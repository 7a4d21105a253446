-- Extends deliveries. Takes the claims. Answers each with for how long, 0: it has ended.

operation('renew', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local claims = {}
  for i = 4, #ARGV do claims[i - 3] = ARGV[i] end
  local lanes = call('HMGET', CLAIMS, unpack(claims))
  for at, lane in ipairs(lanes) do lanes[at] = lane or '' end
  local states, answers = states_of(lanes), { now_text }
  for at, claim in ipairs(claims) do
    local state, lane = states[at], lanes[at]
    local ends = state and claim_of(state) == claim and ends_of(state) or 0
    if ends > now then
      local ttl = tonumber(sub(state, 107, 122))
      -- A clock that was set back must not shorten what was promised.
      ends = max(ends, now + ttl)
      later(SET_STATES, lane, sub(state, 1, 16) .. padded(ends) .. sub(state, 33))
      later(SET_LANES, padded(max(ends, rests_of(state))), member_of(lane, sub(state, 1, 16)))
      answers[at + 1] = ttl
    else
      answers[at + 1] = 0
    end
  end
  flush()
  return answers
end)
