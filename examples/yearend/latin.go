package yearend

import "strings"

// latin turns text into Windows-1252, which the fonts of PDF speak. What it lacks becomes a question mark.
func latin(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x80 || (r >= 0xA0 && r <= 0xFF):
			b.WriteByte(byte(r))
		case r == '–':
			b.WriteByte(0x96)
		case r == '—':
			b.WriteByte(0x97)
		case r == '’':
			b.WriteByte(0x92)
		case r == '€':
			b.WriteByte(0x80)
		default:
			b.WriteByte('?')
		}
	}
	return b.String()
}

// fromLatin undoes latin.
func fromLatin(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; c {
		case 0x96:
			b.WriteRune('–')
		case 0x97:
			b.WriteRune('—')
		case 0x92:
			b.WriteRune('’')
		case 0x80:
			b.WriteRune('€')
		default:
			b.WriteRune(rune(c))
		}
	}
	return b.String()
}
