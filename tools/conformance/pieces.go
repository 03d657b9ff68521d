package conformance

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// pieces returns the results that came in pieces, as slots: those of which all pieces are here and are what they say.
func (a *answer) pieces() (whole []slot) {
	byResult := map[wire.Whole][][]byte{}
	for _, m := range a.messages {
		if p := m.piece; p != nil {
			if byResult[p.Whole] == nil {
				byResult[p.Whole] = make([][]byte, p.Pieces)
			}
			byResult[p.Whole][p.Number-1] = p.Data
		}
	}
	for of, parts := range byResult {
		data := slices.Concat(parts...)
		missing := slices.ContainsFunc(parts, func(part []byte) bool { return part == nil })
		if missing || int64(len(data)) != of.Bytes || sha256.Sum256(data) != of.SHA256 {
			continue
		}
		if of.ContentType == wire.ContentTypeJSON {
			whole = append(whole, slot{I: &of.Ordinal, D: data})
			continue
		}
		text := base64.StdEncoding.EncodeToString(data)
		whole = append(whole, slot{I: &of.Ordinal, B: &text, T: of.ContentType})
	}
	return whole
}
