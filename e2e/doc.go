// Package e2e holds scenarios that run the whole product on a real Docker engine, as testscript files in testdata.
//
// They need root and what scripts/setup installs, so they are asked for:
//
//	go test ./e2e -run-docker
//	go test ./e2e -run-docker -run Scenarios/three_phases -v
//
// A run makes its own lab (see the lab directory): an engine and an internet in network namespaces that lead nowhere.
// What a script may say beside testscript's own commands is listed in testdata/README.md.
package e2e
