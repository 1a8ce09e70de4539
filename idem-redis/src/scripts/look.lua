-- Gives the value, and now. ARGV[4], if there is one: not if it is done.
local value = redis.call('GET', KEYS[1])
if not value then return {0} end
if ARGV[4] and is_record(value) and string.sub(value, 3, 3) == 'd' then return {0} end
local now = now_of(value)
if not now then return {2} end
return {0, value, now}
