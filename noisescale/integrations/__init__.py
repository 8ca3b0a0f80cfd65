"""Callbacks for other people's trainers, each in an extra of its own: `noisescale[huggingface]`,
`noisescale[lightning]`. What measures lies in `tracking`; nothing imports from here.
"""
