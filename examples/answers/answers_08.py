"""Answers to the exercises of tutorial 8."""

from pagedref import CacheSpec, load_model
from pagedref.models.tiny_text import encode

# Answers
# 1. Each token asks in each layer, so there is an answer for each: what comes after it. In a prompt we know that
#    already. (Whoever wants to know how surprised the model is by a text needs all rows.)

# 2. 500 tokens take 32 pages of 16, and 42 times 32 frames fit.
spec = CacheSpec(num_layers=30, num_kv_heads=3, head_dim=64, page_size=16)
assert spec.bytes_per_token == 46_080 and spec.num_pages(500) == 32
assert 1_000_000_000 // spec.bytes_per_frame // 32 == 42

# 3. The last one. Its key would be needed by the token after it, and there is none. The tiny model says the same:
prompt = encode("the colour of heron is amber teal . what is the colour of heron ?")
answer = load_model("tiny").generate([prompt], max_tokens=6, page_size=1)[0]
assert answer.memory.frames_held == len(prompt) + len(answer.token_ids) - 1
