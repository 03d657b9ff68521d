package main

// accepting accepts the failure of the run "it", sees it shown, and withdraws it.
func (b *bench) accepting() {
	b.Helper()
	accept := []string{"run", "accept", "it", "--failed", "--reason", "the account is closed"}
	b.want(b.tranche(append(accept, "--dry-run")...), 0, "dry run",
		"1 item would be accepted: 1 failed, of which 1 accepted", "nothing was changed")
	b.want(b.tranche("run", "show", "it"), 0, "1 failed, 0 to go")
	b.want(b.tranche(accept...), 0, "1 item accepted: 1 failed, of which 1 accepted")
	b.want(b.tranche(accept...), 1, "accepted already")
	b.want(b.tranche("run", "show", "it"), 0, "1 failed, of which 1 accepted")
	b.want(b.tranche("run", "report", "it"), 0, "of which 1 accepted")
	b.want(b.tranche("run", "errors", "it"), 0, "accepted; step", "tranche run accept")
	b.want(b.tranche("run", "items", "it", "--state", "failed"), 0, "failed (accepted)")
	b.want(b.tranche("run", "item", "it", "2"), 0, "accepted", "the account is closed")
	b.want(b.tranche("run", "history", "it"), 0, "accept", "the account is closed")
	b.want(b.tranche("run", "watch", "it"), 3, "1 failed, of which 1 accepted")
	b.want(b.pipe("2\n3\n", "run", "accept", "it", "--keys", "-", "--withdraw"), 0, "1 item accepted no more: 1 failed")
}
