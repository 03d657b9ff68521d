// Package systest has tests of whole processes: nodes, services and operators' commands that are killed, stopped and
// told to end, and the real binary as docs/operate has it run: with TLS, behind poolers, as a role that owns nothing,
// under Prometheus.
//
// What a crash leaves behind is tested without processes where that can be. One real kill for each role is here, to
// show that the two agree. Which test finds which fault:
//
//	node killed: claim, publish, record, ack  orchestrator TestANodeCrashesAnywhere, TestACompletionIsToldAfterACrash,
//	                                          TestNodesCrashBetweenPieces; flush TestANodeCrashes…; TestNodeIsKilled
//	node asleep for three leases              TestNodeSleepsForThreeLeases, orchestrator TestANodeThatWorksIsCutOff
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
// Child processes are this test binary itself, in a role that an environment variable names; those of the operator are
// the real program. Databases and NATS servers are each test's own.
package systest
