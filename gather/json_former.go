package gather

import "encoding/json"

// formerInFlight was the limit of requests of plans that gave none, when it was a fixed one.
const formerInFlight = 64

// FormerJSON returns the form in which a run of the first version kept the plan that was asked for in the same words,
// and false when there were no words for it. A start that is repeated after an upgrade is known by it.
func (p *Plan) FormerJSON() (spec json.RawMessage, ok bool) {
	if p.MaxFailed != "" || p.Canary != 0 || p.CanaryAuto || p.Order.Set() || len(p.Steps) > 1 {
		return nil, false
	}
	out := p.clone()
	out.Priority = 0 // it was no part of plans
	for i := range out.Steps {
		if !out.Steps[i].makeFormer() {
			return nil, false
		}
	}
	spec, err := json.Marshal(out)
	return spec, err == nil
}

// makeFormer reports whether there was such a step, and gives it the settings that it had.
func (s *Step) makeFormer() bool {
	if s.Kind() != KindEndpoint || s.Inputs != nil || s.Optional || s.Barrier {
		return false
	}
	added := s.ChunkAuto || s.ChunkBytes != 0 || s.ChunkTime != 0 || s.Rate != 0 || len(s.RetryCodes) > 0 ||
		len(s.NeverRetry) > 0 || s.MaxBackoff != longestBackoff(s.RetryBackoff)
	if added || s.InFlightAuto && s.InFlight != DefaultInFlight {
		return false
	}
	if s.InFlightAuto {
		s.InFlight, s.InFlightAuto = formerInFlight, false
	}
	s.MaxBackoff = 0
	return true
}
