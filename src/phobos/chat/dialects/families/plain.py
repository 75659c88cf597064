"""For templates that know no tools: calls are asked for, and read, as `chat/conversation.py` introduces them."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.hermes import CALLS

PLAIN = Dialect("plain", CALLS, lambda template: True)
