package wire

import (
	"crypto/sha256"
	"slices"
)

// Assembly puts results together from their pieces. It is for those who hold results whole, as tests of services do;
// nodes keep the pieces. The zero Assembly is ready for the pieces of one reply, and for one goroutine.
type Assembly struct{ open map[Whole]*partial }

type partial struct {
	pieces [][]byte
	left   int
}

// Add takes a piece, which may come again and in any order, and returns the slot that it completes, once; nil when
// there is none yet. The pieces of a result that is not what they say of it are an error.
func (a *Assembly) Add(p *Piece) (*Slot, error) {
	of := a.open[p.Whole]
	if of == nil {
		if a.open == nil {
			a.open = map[Whole]*partial{}
		}
		of = &partial{make([][]byte, p.Pieces), p.Pieces}
		a.open[p.Whole] = of
	}
	if of.left == 0 || of.pieces[p.Number-1] != nil {
		return nil, nil
	}
	of.pieces[p.Number-1] = p.Data
	if of.left--; of.left > 0 {
		return nil, nil
	}
	data := slices.Concat(of.pieces...)
	of.pieces = nil
	if int64(len(data)) != p.Bytes || sha256.Sum256(data) != p.SHA256 {
		return nil, About(p.Meta, Malformed(ReasonPiece, "the pieces of slot %d are not the %d bytes of SHA-256 %x",
			p.Ordinal, p.Bytes, p.SHA256))
	}
	return &Slot{Ordinal: p.Ordinal, Data: data, ContentType: p.ContentType}, nil
}
