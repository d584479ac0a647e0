"""llama.cpp, unmodified (by llama-cpp-python), that answers requests as `llm_serving.py` says.

  llama_server.py MODEL_FOLDER UTILIZATION GIB

Of GIB what the weights leave is its KV cache. UTILIZATION is not read. The weights are random ones, in `model.gguf` of the folder:

  llama_server.py --make MODEL_FOLDER LAYERS
"""

import json
import sys
from pathlib import Path

import llm_serving
from llm_serving import SHAPE

GIB = 1 << 30
# Of keys and values of one token in one layer, in halves.
TOKEN_BYTES = 2 * 2 * SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
# For the buffers of a computation.
BESIDE = 2 * GIB
# Its prompts are answered one after the other.
BATCH = 4
# All weights are parts of so many random numbers.
NUMBERS = 1 << 24


def make(folder, layers):
    import gguf
    import numpy

    hidden, inner, vocabulary = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"]
    few = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
    numbers = (numpy.random.default_rng(0).standard_normal(NUMBERS, dtype=numpy.float32) * 0.02).astype(numpy.float16)
    writer = gguf.GGUFWriter(Path(folder) / "model.gguf", "llama")
    writer.add_block_count(layers)
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_rope_dimension_count(SHAPE["head_dim"])
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"t{n}" for n in range(259, vocabulary))])
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (vocabulary - 259)])
    at = 0

    def add(name, *shape):
        nonlocal at
        count = int(numpy.prod(shape))
        at = (at + 7919) % NUMBERS
        writer.add_tensor(name, numpy.resize(numpy.roll(numbers, at), count).reshape(shape))

    add("token_embd.weight", vocabulary, hidden)
    for layer in range(layers):
        for name, rows, columns in (("attn_q", hidden, hidden), ("attn_k", few, hidden), ("attn_v", few, hidden), ("attn_output", hidden, hidden),
                                    ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner)):
            add(f"blk.{layer}.{name}.weight", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(hidden, dtype=numpy.float32))
    writer.add_tensor("output_norm.weight", numpy.ones(hidden, dtype=numpy.float32))
    add("output.weight", vocabulary, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load():
    import llama_cpp

    folder = Path(sys.argv[1])
    path, config = folder / "model.gguf", json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"]
    context = int((float(sys.argv[3]) * GIB - path.stat().st_size - BESIDE) // (TOKEN_BYTES * layers)) // 256 * 256
    llm = llama_cpp.Llama(str(path), n_gpu_layers=-1, n_ctx=context, n_batch=512)

    def of(prompt, count):
        # What is in the KV cache of an earlier request is not used.
        llm.reset()
        found = []
        for token in llm.generate(prompt, temp=0.0, repeat_penalty=1.0):
            found.append(int(token))
            if len(found) == count:
                return found
        return found

    return lambda prompts, count: [of(prompt, count) for prompt in prompts]


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(sys.argv[2], int(sys.argv[3]))
    else:
        llm_serving.serve(load, BATCH)
