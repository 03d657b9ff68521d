package connections

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// shortSecret is a length below which a secret may well be a part of common words.
const shortSecret = 8

// hide replaces a secret in a text. A short one is replaced where it stands as a word only: of the words that contain
// it nothing would be left to read, and they would tell it.
func hide(text, secret, instead string) string {
	if secret == "" {
		return text
	}
	if utf8.RuneCountInString(secret) >= shortSecret {
		return strings.ReplaceAll(text, secret, instead)
	}
	var b strings.Builder
	for {
		at := strings.Index(text, secret)
		if at < 0 {
			b.WriteString(text)
			return b.String()
		}
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		first, size := utf8.DecodeRuneInString(secret)
		last, _ := utf8.DecodeLastRuneInString(secret)
		after, _ := utf8.DecodeRuneInString(text[at+len(secret):])
		if inWord(before) && inWord(first) || inWord(last) && inWord(after) {
			b.WriteString(text[:at+size])
			text = text[at+size:]
			continue
		}
		b.WriteString(text[:at] + instead)
		text = text[at+len(secret):]
	}
}

func inWord(r rune) bool {
	return r != utf8.RuneError && (r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r))
}
