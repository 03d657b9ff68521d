package admin

import "errors"

// Demo is the command that tells the demo's story, and the services that it starts.
type Demo struct {
	Demo DemoStory `cmd:"" help:"Make a small bank, gather and compose its year-end, break it, repair it, prove it."`
}

// DemoStory is told elsewhere.
type DemoStory struct{}

// Run says where the demo can be seen.
func (DemoStory) Run() error {
	return errors.New("the demo runs servers and kills them as Unix lets it: see it on Linux, macOS or WSL")
}
