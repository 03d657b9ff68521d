package itemschema

import (
	"regexp/syntax"
	"slices"
)

// Bounds of a machine: patterns that need more are left to regexp.
const (
	maxStates       = 100
	maxInstructions = 200
)

// machine finds a pattern in texts of ASCII characters: a table from state and character to state, made of the program
// that regexp runs (the subset construction). regexp takes ten times as long for a short text.
type machine struct {
	next  []uint8 // [state * 128 + character]
	atEnd []bool  // the pattern is found when the text ends here
}

// What states there are in any case.
const (
	found uint8 = iota // the pattern is in what was read
	first              // nothing was read
)

// newMachine makes the machine of a pattern that compiles, or none.
func newMachine(pattern string) *machine {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil || len(prog.Inst) > maxInstructions {
		return nil
	}
	for i := range prog.Inst {
		at := syntax.EmptyOp(prog.Inst[i].Arg)
		if prog.Inst[i].Op == syntax.InstEmptyWidth && at != syntax.EmptyBeginText && at != syntax.EmptyEndText {
			return nil // it depends on the characters on both sides
		}
	}
	b := &builder{prog: prog, m: &machine{}, numbers: map[string]uint8{}}
	return b.build()
}

type builder struct {
	prog    *syntax.Prog
	m       *machine
	states  []threads
	numbers map[string]uint8
}

// threads are the instructions at which the program may be, before the next character or the end.
type threads struct {
	at   []bool
	done bool // the pattern is found
}

func (b *builder) build() *machine {
	b.number(&threads{done: true})
	alike := b.alike()
	start := b.after(syntax.EmptyBeginText, b.prog.Start)
	b.add(&start)                        // without its name: no character leads back to the beginning
	for n := 0; n < len(b.states); n++ { //nolint:intrange // there come more
		begin := len(b.m.next)
		for c, like := range alike {
			if like < c {
				b.m.next = append(b.m.next, b.m.next[begin+like])
				continue
			}
			if len(b.states) > maxStates {
				return nil
			}
			b.m.next = append(b.m.next, b.step(n, rune(c)))
		}
	}
	return b.m
}

// alike has for each character the first one that the program does not tell from it.
func (b *builder) alike() (all [128]int) {
	firsts := map[string]int{}
	for c := range all {
		var readers []byte
		for pc := range b.prog.Inst {
			if b.reads(pc) && b.prog.Inst[pc].MatchRune(rune(c)) {
				readers = append(readers, byte(pc))
			}
		}
		if _, known := firsts[string(readers)]; !known {
			firsts[string(readers)] = c
		}
		all[c] = firsts[string(readers)]
	}
	return all
}

func (b *builder) none() []bool { return make([]bool, len(b.prog.Inst)) }

// number is that of a state, which is added when it is new.
func (b *builder) number(s *threads) uint8 {
	if s.done {
		s.at = b.none()
	}
	name := make([]byte, 0, len(s.at)+1)
	for _, here := range append(slices.Clone(s.at), s.done) {
		name = append(name, map[bool]byte{true: 1}[here])
	}
	n, known := b.numbers[string(name)]
	if !known {
		n = b.add(s)
		b.numbers[string(name)] = n
	}
	return n
}

func (b *builder) add(s *threads) uint8 {
	b.states = append(b.states, *s)
	end := syntax.EmptyEndText
	if len(b.states) == int(first)+1 {
		end |= syntax.EmptyBeginText // of the empty text
	}
	over := threads{at: b.none(), done: s.done}
	for pc, here := range s.at {
		if here {
			b.follow(&over, pc, end)
		}
	}
	b.m.atEnd = append(b.m.atEnd, over.done)
	return uint8(len(b.states) - 1)
}

// step is the state after one more character.
func (b *builder) step(n int, c rune) uint8 {
	s := &b.states[n]
	if s.done {
		return found
	}
	next := b.after(0, b.prog.Start) // it may begin at every character
	for pc, here := range s.at {
		if here && b.reads(pc) && b.prog.Inst[pc].MatchRune(c) {
			b.follow(&next, int(b.prog.Inst[pc].Out), 0)
		}
	}
	return b.number(&next)
}

func (b *builder) reads(pc int) bool {
	switch b.prog.Inst[pc].Op {
	case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
		return true
	default:
		return false
	}
}

func (b *builder) after(where syntax.EmptyOp, pc int) threads {
	s := threads{at: b.none()}
	b.follow(&s, pc, where)
	return s
}

// follow adds what an instruction leads to without a character. What waits for the end stays.
func (b *builder) follow(s *threads, pc int, where syntax.EmptyOp) {
	if s.at[pc] {
		return
	}
	s.at[pc] = true
	inst := &b.prog.Inst[pc]
	switch inst.Op {
	case syntax.InstMatch:
		s.done = true
	case syntax.InstAlt, syntax.InstAltMatch:
		b.follow(s, int(inst.Out), where)
		b.follow(s, int(inst.Arg), where)
	case syntax.InstCapture, syntax.InstNop:
		b.follow(s, int(inst.Out), where)
	case syntax.InstEmptyWidth:
		if at := syntax.EmptyOp(inst.Arg); where&at == at {
			b.follow(s, int(inst.Out), where)
		}
	}
}

// finds reports whether the pattern is in a text; known is false for a text with characters that are not ASCII.
func (m *machine) finds(text []byte) (is, known bool) {
	state := first
	for _, c := range text {
		if c >= 128 {
			return false, false
		}
		state = m.next[int(state)*128+int(c)]
	}
	return m.atEnd[state], true
}
