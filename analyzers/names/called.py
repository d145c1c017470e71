"""What to do about a library's function that a line of the user calls, and that takes long."""

from __future__ import annotations

import re

_SAVES = (
    r"torch\.(serialization\.)?save$|torch\.distributed\.checkpoint\.|safetensors\..*save"
    r"|(pickle|dill|joblib|cloudpickle)\.dumps?$|numpy\.save|.*\.save_(pretrained|checkpoint)$"
    r"|.*\.save_(model|state)$"
)
_LOADS = (
    r"torch\.(serialization\.)?load$|safetensors\..*(load|open)|(pickle|dill|joblib)\.loads?$"
    r"|numpy\.load|json\.loads?$|.*\.from_pretrained$|pandas\.read_"
)
_SENDS = (
    r"requests\.|urllib|http\.|httpx\.|aiohttp\.|wandb\.|mlflow\.|comet_ml\.|neptune\.|boto3\."
    r"|botocore\.|huggingface_hub\.|socket\.|torch\.utils\.tensorboard\.|tensorboardX\."
)
_PRINTS = r"print$|logging\.|sys\.std(out|err)\.|warnings\.warn|tqdm\.|rich\.|loguru\."
_PREPARES = (
    r"PIL\.|torchvision\.|cv2\.|torchaudio\.|soundfile\.|librosa\.|decord\.|av\.|datasets\."
    r"|tokenizers\.|transformers\..*(Token|Processor|FeatureExtractor)"
)
_GENERATES = r".*\.generate$"
_WRITES = r"json\.dumps?$|yaml\.|csv\.|pandas\..*\.to_"
_ADVICE = {
    _SAVES: (
        "Save less often, or beside the loop: copy the state to host memory and write it in a "
        "thread or another process (torch.distributed.checkpoint.async_save does)."
    ),
    _LOADS: "Read it once, before the loop, or ahead of it in another thread.",
    _SENDS: (
        "Send it less often, several values at a time, or from a thread of its own: the step waits "
        "for the answer."
    ),
    _PRINTS: "Print less: every so many steps, and on one rank alone.",
    _PREPARES: (
        "Prepare data before the loop, or in worker processes beside it (DataLoader with "
        "num_workers)."
    ),
    _GENERATES: (
        "It is what happens around each token: processors of logits, stopping criteria, streamers. "
        "Leave out those that are not needed; a larger batch spreads the rest over more tokens."
    ),
    _WRITES: "Write it less often, or from a thread of its own.",
}
_KNOWN = tuple((re.compile(pattern), advice) for pattern, advice in _ADVICE.items())


def advice_on(call: str) -> str:
    """What to change about calling it; "" where nothing more is known than that it takes long."""
    return next((advice for pattern, advice in _KNOWN if pattern.match(call)), "")
