package kine

import (
	"strings"
	"testing"
)

func TestParseEndpoint(t *testing.T) {
	for _, c := range []struct{ in, shown, text string }{
		{"sqlite://", "sqlite:///d/state.db", "sqlite:///d/state.db?_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&_stmt_cache_size=20&_kine_disable_startup_vacuum=true"},
		{"sqlite", "sqlite:///d/state.db", "sqlite:///d/state.db?_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&_stmt_cache_size=20&_kine_disable_startup_vacuum=true"},
		{"sqlite:///x/y.db?_synchronous=OFF", "sqlite:///x/y.db", "sqlite:///x/y.db?_synchronous=OFF&_journal_mode=WAL&_busy_timeout=30000&_txlock=immediate&_stmt_cache_size=20&_kine_disable_startup_vacuum=true"},
		{"postgres://u:p%40ss@h:5432/d?sslmode=require", "postgres://h:5432/d", "postgres://u:p%40ss@h:5432/d?sslmode=require"},
		{"postgresql://u:p@h/d", "postgres://h/d", "postgresql://u:p@h/d"},
		{"mysql://u:p@ss/w@tcp(h:3306)/d?tls=true", "mysql://tcp(h:3306)/d", "mysql://u:p@ss/w@tcp(h:3306)/d?tls=true"},
		{"mysql://u@unix(/run/m.sock)/d", "mysql://unix(/run/m.sock)/d", "mysql://u@unix(/run/m.sock)/d"},
	} {
		e, err := ParseEndpoint(c.in, "/d/state.db")
		if err != nil || e.String() != c.shown || e.text != c.text {
			t.Errorf("%s: %q, %q, %v", c.in, e, e.text, err)
		}
	}
	for _, in := range []string{"", "sqlight", "nats://u:secret@h", "postgres", "postgres://u:secret%zz@h/d", "mysql://", "mysql", "u:secret@h"} {
		if _, err := ParseEndpoint(in, "/d/state.db"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestHide(t *testing.T) {
	for _, c := range []struct{ endpoint, message, want string }{
		{"postgres://u:p%40ss@h/d", "cannot parse postgres://u:p%40ss@h/d, p@ss", "cannot parse postgres://h/d, xxxxx"},
		{"postgres://h/d?user=u&password=hush", "password=hush", "password=xxxxx"},
		{"mysql://u:a/b@tcp(h)/d", "u:a/b@tcp(h)", "u:xxxxx@tcp(h)"},
		{"sqlite://", "disk full", "disk full"},
	} {
		e, err := ParseEndpoint(c.endpoint, "/d")
		if err != nil {
			t.Fatal(err)
		}
		if got := e.hide(c.message); got != c.want {
			t.Errorf("%s: %q, want %q", c.endpoint, got, c.want)
		}
	}
}
