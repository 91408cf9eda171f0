"""The embedded engine: runs a Hugging Face checkpoint on any machine.

This folder is copied verbatim into the repositories it serves from, so its modules import each
other relatively and nothing else of trtspec.

    engine = Engine(folder)
    for chunk in engine.generate(Request(input_ids=[1, 2, 3], max_new_tokens=16)):
        print(chunk.ids)
"""
