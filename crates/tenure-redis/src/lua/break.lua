-- An operator ends the hold with a token. Takes: the token, and whether its units come free at once. Answers in how
-- many ms they do, -1 if no hold has that token, -2 - ms if they rest already and nothing is changed.

operation('break', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local token, at_once = tonumber(ARGV[4]), ARGV[5] == '1'
  local record = read(KEYS[5])
  if record.is_bad then return { padded(now), -1 } end
  settle(record)
  local hold
  if record.kind == 'm' then
    hold = record.hold and record.hold.token == token and record.hold or nil
  elseif record.kind and call('HEXISTS', record.key, padded(token)) == 1 then
    hold = hold_with(record, padded(token))
  end
  local answer = -1
  -- Another client's key can be removed, but no rest can keep that client from renewing it.
  if hold and (at_once or hold.id ~= FOREIGN) then
    local ends = hold.ends
    local is_held = hold.id ~= REST and hold.id ~= FOREIGN
    answer = at_once and 0 or ends - t
    if is_held then finish(hold.id) end
    if at_once then
      end_hold(record, hold, t)
    elseif is_held then
      end_hold(record, hold, ends)
    else
      answer = -2 - answer
    end
  end
  grant_waiters(record)
  write(record)
  tell()
  return { padded(now), answer }
end)
