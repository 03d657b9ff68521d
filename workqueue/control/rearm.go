package control

// Rearm changes what the next generation changes of a hold and a canary, and reports whether a sample begins. A run
// that had completed is held no more. A new canary takes the place of one that waits, and of its hold; what that one
// held back stays so until the new one has ended.
func (r *RunHold) Rearm(canary, held bool) (sampling bool) {
	inCanary := r.Canary == "sampling" || r.Canary == "waiting"
	if r.state == "completed" && inCanary { // it ended with its sample
		r.Canary, inCanary = "passed", false
	}
	if sampling = held || canary && inCanary; sampling {
		r.Canary = "sampling"
	}
	if r.state == "completed" || r.Hold == HoldCanary && sampling {
		r.Hold, r.Detail, r.At, r.By = "", "", nil, ""
	}
	return sampling
}
