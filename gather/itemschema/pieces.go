package itemschema

import "regexp/syntax"

// pieces are what a pattern is made of that a whole text must match, one after the other: literal texts, characters of
// a class so many times, and pieces that may be left out. Most patterns of fields are like that, and going over them is
// much faster than a machine. Each takes as much as it can; where that is in vain, a machine has the say.
type pieces []piece

type piece struct {
	class       *[256]uint8 // 1 for characters that stand for themselves in JSON
	least, most int32       // of the class; most -1: any number
	kind        pieceKind
	literal     string
	maybe       pieces
}

type pieceKind uint8

const (
	aRun pieceKind = iota // of characters of a class
	aLiteral
	aMaybe
)

// newPieces are those of a pattern, or nil.
func newPieces(pattern string) pieces {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil || re.Op != syntax.OpConcat {
		return nil
	}
	last := len(re.Sub) - 1
	if re.Sub[0].Op != syntax.OpBeginText || re.Sub[last].Op != syntax.OpEndText {
		return nil
	}
	all, _ := pieces{}.with(re.Sub[1:last])
	return all
}

func (p pieces) with(all []*syntax.Regexp) (_ pieces, ok bool) {
	for _, re := range all {
		next, ok := newPiece(re)
		if !ok {
			return nil, false
		}
		p = append(p, next)
	}
	return p, true
}

func newPiece(re *syntax.Regexp) (p piece, ok bool) {
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			if !plain(r) {
				return p, false
			}
		}
		return piece{kind: aLiteral, literal: string(re.Rune)}, re.Flags&syntax.FoldCase == 0
	case syntax.OpQuest:
		if inner := re.Sub[0]; inner.Op == syntax.OpCapture && inner.Sub[0].Op == syntax.OpConcat {
			p.kind = aMaybe
			p.maybe, ok = p.maybe.with(inner.Sub[0].Sub)
			return p, ok
		}
		return newRun(re.Sub[0], 0, 1)
	case syntax.OpStar:
		return newRun(re.Sub[0], 0, -1)
	case syntax.OpPlus:
		return newRun(re.Sub[0], 1, -1)
	case syntax.OpRepeat:
		return newRun(re.Sub[0], re.Min, re.Max)
	default:
		return newRun(re, 1, 1)
	}
}

// plain reports whether a character stands for itself in JSON, in one byte.
func plain(r rune) bool { return r >= ' ' && r < 128 && r != '"' && r != '\\' }

// newRun is a piece of characters of one class.
func newRun(re *syntax.Regexp, least, most int) (p piece, ok bool) {
	ranges := re.Rune
	switch {
	case re.Op == syntax.OpLiteral && len(ranges) == 1 && re.Flags&syntax.FoldCase == 0:
		ranges = []rune{ranges[0], ranges[0]}
	case re.Op == syntax.OpAnyChar || re.Op == syntax.OpAnyCharNotNL:
		ranges = []rune{0, 127}
	case re.Op != syntax.OpCharClass:
		return p, false
	}
	p = piece{class: new([256]uint8), least: int32(least), most: int32(most)}
	for i := 0; i < len(ranges); i += 2 {
		for r := ranges[i]; r <= ranges[i+1] && r < 128; r++ {
			if plain(r) {
				p.class[r] = 1
			}
		}
	}
	return p, true
}

// end is where the pieces end that begin at some place; -1: they do not stand there, as far as is known here.
func (p pieces) end(text []byte, at int) int {
	for i := range p {
		switch next := &p[i]; next.kind {
		case aRun:
			rest := text[at:]
			if next.most >= 0 {
				rest = rest[:min(len(rest), int(next.most))]
			}
			n := 0
			for c := next.class; len(rest)-n >= 4 && c[rest[n]]&c[rest[n+1]]&c[rest[n+2]]&c[rest[n+3]] != 0; {
				n += 4 // with a branch for four of them
			}
			for n < len(rest) && next.class[rest[n]] != 0 {
				n++
			}
			if n < int(next.least) {
				return -1
			}
			at += n
		case aMaybe:
			if end := next.maybe.end(text, at); end >= 0 {
				at = end
			}
		case aLiteral:
			if len(text)-at < len(next.literal) || string(text[at:at+len(next.literal)]) != next.literal {
				return -1
			}
			at += len(next.literal)
		}
	}
	return at
}
