-- Gives the value, and now.
local value = redis.call('GET', KEYS[1])
if not value then return {0} end
return {0, value, now_of(value)}
