-- Writes over the value that was judged, if that is still there and has come to its time.
-- ARGV[4] the value, ARGV[5] from when on, ARGV[6] the new value, ARGV[7] for how long; as long as before if empty.
local value = redis.call('GET', KEYS[1])
if not value then return {0} end
local now = now_of(value)
if not now then return {2} end
if value ~= ARGV[4] or now < tonumber(ARGV[5]) then return {0, value, now} end
say_ended()
if ARGV[7] == '' then
  redis.call('SET', KEYS[1], ARGV[6], 'KEEPTTL')
else
  redis.call('SET', KEYS[1], ARGV[6], 'PX', ARGV[7])
end
return {1}
