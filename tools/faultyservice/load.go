package faultyservice

import (
	"errors"
	"time"
)

// Load is how long chunks take. Alone, a chunk takes PerChunk and PerItem for each of its items. With c chunks at work
// each is slowed down by
//
//	max(1, c/Servers) · (1 + c·(c−1)/Best²)
//
// where a zero Servers or Best leaves its factor out. The first is a pool of so many workers. The second is the loss by
// coherence in Gunther's universal scalability law: throughput peaks at c = Best, and falls beyond it.
type Load struct {
	PerChunk time.Duration `json:"per_chunk,omitempty"`
	PerItem  time.Duration `json:"per_item,omitempty"`
	Servers  int           `json:"servers,omitempty"`
	Best     int           `json:"best,omitempty"`
}

func (l *Load) validate() error {
	if l.PerChunk < 0 || l.PerItem < 0 || l.Servers < 0 || l.Best < 0 {
		return errors.New("faultyservice: Load has a negative field")
	}
	return nil
}

// alone is how long a chunk of n items takes when there is no other.
func (l *Load) alone(n int) time.Duration { return l.PerChunk + time.Duration(n)*l.PerItem }

// slowdown is how many times longer each of c chunks takes.
func (l *Load) slowdown(c int) float64 {
	factor := 1.0
	if l.Servers > 0 {
		factor = max(1, float64(c)/float64(l.Servers))
	}
	if l.Best > 0 {
		factor *= 1 + float64(c)*float64(c-1)/float64(l.Best*l.Best)
	}
	return factor
}

// Peak is the most items a second that a service with this load answers, in chunks of n items, and the number of chunks
// at work that it takes. It looks at up to limit of them.
func (l *Load) Peak(n, limit int) (rate float64, atOnce int) {
	for c := 1; c <= limit; c++ {
		r := float64(c*n) / (l.alone(n).Seconds() * l.slowdown(c))
		if r > rate*(1+1e-9) {
			rate, atOnce = r, c
		}
	}
	return rate, atOnce
}
