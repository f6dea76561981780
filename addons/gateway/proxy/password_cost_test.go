package proxy

import "testing"

// A password that takes a day to check is none.
func TestCostIsBounded(t *testing.T) {
	const slow = "$2y$31$abcdefghijklmnopqrstuu5Lo0g67CiD3M4RpN1BmBb4Crp5w7dbK"
	if KnownHash(slow) || checkPassword(slow, "x") {
		t.Error("it is checked")
	}
	if !KnownHash("$2y$12$abcdefghijklmnopqrstuu5Lo0g67CiD3M4RpN1BmBb4Crp5w7dbK") {
		t.Error("a usual cost is refused")
	}
}
