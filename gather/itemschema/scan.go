package itemschema

import (
	"encoding/binary"
	"math/bits"
)

// ValueEnd returns where the value ends that begins at some place of valid JSON.
func ValueEnd(text []byte, at int) int { return skip(text, at) }

func skip(text []byte, at int) int {
	if at >= len(text) {
		return at
	}
	switch text[at] {
	case '"':
		end, _ := textEnd(text, at)
		return end
	case '{', '[':
		depth := 0
		for i := at; i < len(text); i++ {
			switch text[i] {
			case '"':
				i = skip(text, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return len(text)
	case 't', 'n':
		return min(at+len("true"), len(text))
	case 'f':
		return min(at+len("false"), len(text))
	default:
		return numberEnd(text, at)
	}
}

func numberEnd(text []byte, at int) int {
	for ; at < len(text); at++ {
		if c := text[at]; c == ',' || c == '}' || c == ']' {
			return at
		}
	}
	return at
}

// textEnd returns where a text ends, and whether anything in it is escaped.
func textEnd(text []byte, at int) (end int, escaped bool) {
	i := at + 1
	for ; i+8 <= len(text); i += 8 { // eight at a time, to the first that is one of them
		eight := binary.LittleEndian.Uint64(text[i:])
		if found := where(eight, '"') | where(eight, '\\'); found != 0 {
			i += bits.TrailingZeros64(found) / 8
			break
		}
	}
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i + 1, escaped
		case '\\':
			escaped = true
			i++
		}
	}
	return len(text), escaped
}

// where has the highest bit of the first byte that is c set, and none before.
func where(eight uint64, c byte) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	other := eight ^ ones*uint64(c)
	return (other - ones) &^ other & tops
}
