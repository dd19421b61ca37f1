"""Writes strings.json: the texts every tokenizer golden is made over. No arguments; stdout is the file."""
import json, random

S = []
add = S.append

# Plain and half-plain text.
for t in ["", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", " \n", "\n ", " \n \n ", "\r", "\r\n", "\r\n\r\n",
          "\n\r", " \r\n x", "\x0b\x0c", "a\x0bb", "Hello", " Hello", "Hello ", "Hello, world!", "  Hello", "   Hello",
          "Hello  world", "Hello   world", "Hello\nworld", "Hello\n\nworld", "Hello \n world", "Hello\n  world",
          "Hello\t\tworld", "Hello \t world", "\n  indented\n    more\n\tand\ttabs  \n", "trailing   ", "trailing\n   ",
          "The quick brown fox jumps over the lazy dog.", "ALL CAPS AND MixedCase wordsLikeThis snake_case kebab-case",
          "I'm you're he's we'll they'd I've don't", "I'M YOU'RE HE'S WE'LL THEY'D I'VE DON'T", "'s't're've'm'll'd",
          "'S'T'RE'VE'M'LL'D", "x's y't z'x 'a ''s 's''", "it 's it' s it’s it ’s", "''''", "'", " '", "' ", "rock'n'roll o'clock"]:
    add(t)
# Digits of many kinds.
for t in ["0", "1", "12", "123", "1234", "12345", "123456", "1234567", "12345678", "123456789", " 1", " 12", " 123", " 1234",
          "3.14159", "1,000,000", "1e10", "0x1F", "a1b2c3", "1a", "a1", "1 2 3", "1  2", "10\n20", "٠١٢٣٤", "१२३४५", "௧௨௩", "¹²³", "½¾⅓",
          "ⅣⅧⅫ", "①②③", "㊿", "〇一二三", "1½", "v1.2.3-rc4", "+1 (555) 123-4567", "2024-01-31T23:59:59Z", "𝟙𝟚𝟛", "𒐀𒐁", "१ 1 ١"]:
    add(t)
# Punctuation and symbols.
for t in ["!", "!!", "!!!", "...", "…", "?!?!", "—–-", "\"quoted\"", "“curly” ‘quotes’", "a.b", "a. b", "a .b", "a . b", "(a)", "( a )",
          "[1,2]", "{\"k\": [1, 2.5, null]}", "$100 €200 £300 ¥400 ₿5", "<html><body class=\"x\">", "</s>", "#!/bin/sh\nexit 0\n", "a+b=c", "1+1=2",
          "a<=b>=c!=d", "~^|`\\/", "C:\\path\\to\\file.txt", "https://example.com/a?b=c&d=%20#e", "user@example.org", "***bold*** _it_ `code`",
          "x = y[::-1]  # comment", "for (int i = 0; i < n; ++i) {\n    sum += a[i];\n}\n", "def f(x):\n\treturn x * 2\n\n\n# end", "\\n\\t\\u0041",
          "†‡§¶•", "←↑→↓⇒∀∃∑∫√∞", "½°C ±5% №3", "™®©", "、。「」！？", "！？：；（）", "،؛؟", "।॥", "¿Qué? ¡Sí!"]:
    add(t)
# Scripts.
for t in ["héllo wörld", "naïve café résumé", "Ångström", "A\u030angstro\u0308m", "Żółć gęślą jaźń", "Straße ẞ", "İstanbul ıI", "Ελληνικά κείμενο ς",
          "Привет, мир!", "Ещё раз ё", "שלום עולם", "שָׁלוֹם", "مرحبا بالعالم", "مَرْحَبًا", "नमस्ते दुनिया", "বাংলা ভাষা", "தமிழ் மொழி", "తెలుగు", "ภาษาไทยไม่มีช่องว่าง",
          "ພາສາລາວ", "မြန်မာဘာသာ", "ខ្មែរ", "ქართული", "Հայերեն", "አማርኛ", "日本語のテキスト", "日本語 と English の mix", "漢字かなカナ", "ｶﾀｶﾅ ﾊﾝｶｸ",
          "中文分词测试", "中文，标点。符号！", "繁體中文", "한국어 텍스트", "한국어", "\u1112\u1161\u11ab", "Tiếng Việt có dấu", "Türkçe ğüşıöç", "ᚠᚢᚦᚨᚱᚲ",
          "𐍈𐌰𐌹", "𝒜𝓁𝓅𝒽𝒶", "𝕳𝖊𝖑𝖑𝖔", "Ａｂｃ１２３", "ﬁ ﬂ ﬀ", "ǅ ǈ ǋ", "ªº", "ʰʱʲ", "ꙮ", "𠀀𠀁𪚥", "Ω Ω", "K K"]:
    add(t)
# Emoji, joiners, selectors, flags.
for t in ["😀", " 😀", "😀😀😀", "a😀b", "👍🏽", "👨‍👩‍👧‍👦", "👩🏾‍🚀", "🏳️‍🌈", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🇫🇷🇩🇪", "❤️", "☃", "✈︎", "1️⃣", "#️⃣", "🫠🫡", "👁️‍🗨️", "text😀text 😀 text",
          "🧑🏻‍❤️‍💋‍🧑🏿", "(っ◔◡◔)っ ♥", "¯\\_(ツ)_/¯", "ʕ•ᴥ•ʔ"]:
    add(t)
# Invisible, odd and hostile characters.
for t in ["\x00", "a\x00b", "\x00\x00\x00", " \x00", "\x01\x02\x1f", "\x1c\x1d\x1e", "\x7f", "\u0080\u0085\u009f", "a\u0085b", "\u00a0", "a\u00a0b", "a\u00a0\u00a0b", "\u00ad soft",
          "\u1680\u2000\u2003\u2009", "a\u2003\u2003b", "\u200b", "a\u200bb", "\u200c\u200d", "\u200e\u200f\u202a\u202e", "\u2028\u2029", "a\u2028b", "\u202f1\u202f000", "\u205f",
          "\u3000", "a\u3000b", "a\u3000\u3000b", "\ufeff", "\ufeffBOM", "\ufffd", "\ufffe\uffff", "\ue000\uf8ff", "\U0010ffff", "\U000e0001", "\u0300", "e\u0301", "a\u0300\u0301\u0302\u0303",
          "Z\u0351\u036b\u0343a\u0349\u034el\u0348g", "\u0378\u0379", "\u180e", "\u2060\u2061"]:
    add(t)
# Long and repeating.
for t in ["a" * 100, "ab" * 60, " " * 64 + "x", "\n" * 20, "\t" * 17 + "x", "=" * 80, "-" * 33, "é" * 30, "😀" * 20, "0" * 25, "." * 50 + "\n", " \n" * 10, "x " * 30, "  x" * 20, "The " * 40]:
    add(t)
# Special tokens written out, whole, cut and overlapping.
for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", " <|im_end|> ", "x<|im_end|>y", "<|im_end|><|im_end|>",
          "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", "<|im_", "<|im_end", "|im_end|>", "<|im_end|", "<<|im_end|>>", "<|im_<|im_end|>end|>", "<|IM_END|>", "<| im_end |>",
          "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "<|eot_id|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|python_tag|>", "<|finetune_right_pad_id|>",
          "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<|vision_start|><|image_pad|>", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<tool>x</tool>", "<repo_name>r<file_sep>f", "<issue_start>", "<jupyter_code>1+1",
          "<s>text</s>", "[INST] hi [/INST]", "<unk>", "<pad>", "<filename>a.py", "<gh_stars>10", "<empty_output>", "<|endoftext|><|endoftext|>\n", "日本<|im_end|>語", "😀<|im_end|>", "\x00<|im_end|>\x00"]:
    add(t)
# Seeded soup: letters, spaces and marks of every kind next to each other.
rng = random.Random(20240131)
pool = ["a", "B", "é", "ß", "Ж", "語", "한", "ا", "ก", "😀", "\u200d", "\ufe0f", "1", "२", "½", " ", " ", " ", "\n", "\r", "\t", "\u00a0", "\u3000", "'", "'s", "'LL", ".", ",", "!", "-", "_", "$", "<|im_end|>", "\u0301", "\x00", "the", " in"]
for i in range(60):
    add("".join(rng.choice(pool) for _ in range(rng.randint(2, 24))))

out, seen = [], set()
for t in S:
    if t not in seen:
        seen.add(t)
        out.append(t)
print("[\n" + ",\n".join(json.dumps(t) for t in out) + "\n]")
