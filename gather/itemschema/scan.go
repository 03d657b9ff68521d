package itemschema

// ValueEnd returns where the value ends that begins at some place of valid JSON without spaces.
func ValueEnd(text []byte, at int) int {
	if at >= len(text) {
		return at
	}
	switch text[at] {
	case '"':
		return textEnd(text, at)
	case '{', '[':
		return nestedEnd(text, at)
	default:
		for ; at < len(text); at++ {
			if c := text[at]; c == ',' || c == ':' || c == '}' || c == ']' {
				return at
			}
		}
		return at
	}
}

func nestedEnd(text []byte, at int) int {
	depth := 0
	for ; at < len(text); at++ {
		switch text[at] {
		case '"':
			at = textEnd(text, at) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
	}
	return len(text)
}

func textEnd(text []byte, at int) int {
	for at++; at < len(text); at++ {
		switch text[at] {
		case '"':
			return at + 1
		case '\\':
			at++
		}
	}
	return len(text)
}
