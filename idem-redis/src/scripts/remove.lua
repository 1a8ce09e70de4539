-- Removes the value, if it is still the one that was seen. ARGV[4] the value.
if redis.call('GET', KEYS[1]) ~= ARGV[4] then return {0} end
say_ended()
redis.call('DEL', KEYS[1])
return {1}
