// Package systest tests whole processes: nodes, services and operators' commands that are killed or stopped, and the
// real binary as in docs/operate: with TLS, behind poolers, as a role that owns nothing, under Prometheus.
//
// Crashes are tested without processes where possible. One real kill per role is here, to show that both agree. Which
// test finds which fault:
//
//	node killed: claim, publish, record, ack  orchestrator TestANodeCrashesAnywhere, TestACompletionIsToldAfterACrash,
//	                                          TestNodesCrashBetweenPieces; flush TestANodeCrashes…; TestNodeIsKilled
//	node asleep for three leases              TestNodeSleepsForThreeLeases, orchestrator/sweep
//	leader killed                             TestTheLeaderIsKilledToldToEndAndStopped;
//	                                          alerts TestALeaderDiesBetweenSendingAndRecording
//	service killed                            TestServiceIsKilledInMidChunk, servers TestAFlowLosesWhatItWaitsFor;
//	                                          endpoints TestAFlowSurvivesADeathAtEveryStep
//	operator's change cut off in its commit   TestNodeIsKilledInAnOperatorsCommit
//	item that kills its node                  orchestrator TestAnItemThatCrashesItsNodes
//	NATS restarted, wiped; streams lost       orchestrator TestRunSurvives…, streams TestRunSurvivesTheLossOfStreams
//	disk of NATS full; messages, flows lost   servers
//	three NATS servers                        natscluster, faults one by one; servers
//	PostgreSQL crashed, failed over, rewound  orchestrator TestRunSurvivesACrashOfPostgreSQL; servers;
//	                                          internal/testing/modeltest
//	partitions                                orchestrator TestRunSurvivesPartitions
//	replies lost, doubled, late, forged       internal/testing/modeltest, orchestrator record and sweep
//	SIGTERM                                   orchestrator TestStopHandsBack, cmd/tranche TestAStopEndsUploadsFirst
//	poolers, versions, roles                  TestNodesBehindAPooler, TestASchemaNewerThanTheProgram,
//	                                          TestServeAsARoleThatOwnsNothing; TestTLSBetweenTheMachines
//	a fence taken out                         TestMutantsAreCaught (make soak), TestMutantsLackAFence
//
// The tests in ship_*.go (make soak) build what users install as in a release and use it as they do: the image with a
// read-only root, the package in a separate root, helm's chart and the Compose file. docs/install.md, "What was not
// tried", lists what cannot run here.
//
// Child processes are this test binary in a role set by an environment variable; operators' commands are the real
// program. Each test has separate databases and NATS servers.
package systest
