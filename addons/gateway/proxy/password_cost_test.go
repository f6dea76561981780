package proxy

import (
	"context"
	"testing"
	"testing/synctest"

	"knarr/addons/gateway/route"
)

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

// However many routes ask for passwords, few are hashed at once.
func TestHashingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{})
		for range maxHashing {
			p.hashing <- struct{}{} // others' are hashed
		}
		a := newAuthenticator(&route.Auth{Realm: "r", Users: map[string]string{"ada": "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="}}, p)
		known := make(chan bool, 1)
		go func() { known <- a.knows(context.Background(), "ada", "password") }()
		synctest.Wait()
		if len(known) > 0 {
			t.Error("one more is hashed")
		}
		<-p.hashing
		if !<-known {
			t.Error("the right password is refused")
		}
		if len(p.hashing) != maxHashing-1 || len(a.hashing) != 0 {
			t.Error("a turn was not given back")
		}
	})
}
