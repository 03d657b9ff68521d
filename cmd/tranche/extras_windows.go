package main

import "errors"

// extras are the commands that live on top of the others.
type extras struct {
	Demo demoStory `cmd:"" help:"Make a small bank, gather and compose its year-end, break it, repair it, prove it."`
}

type demoStory struct{}

// Run says where the demo can be seen.
func (demoStory) Run() error {
	return errors.New("the demo runs servers and kills them as Unix lets it: see it on Linux, macOS or WSL")
}
