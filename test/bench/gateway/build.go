package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// modules are the contenders that are Go modules, and their programs. Each is built as its
// own module says, with its own replacements.
var modules = map[string]struct{ module, version, program string }{
	"traefik": {"github.com/traefik/traefik/v3", "v3.6.6", "./cmd/traefik"},
	"caddy":   {"github.com/caddyserver/caddy/v2", "v2.11.9", "./cmd/caddy"},
}

// build builds a contender into the user's cache, once.
func build(ctx context.Context, name string) (program string, err error) {
	m := modules[name]
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	program = filepath.Join(cache, "knarr", name+"-"+m.version)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	fmt.Fprintf(os.Stderr, "building %s %s, once\n", name, m.version)
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", m.module+"@"+m.version).Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w", m.module, err)
	}
	var at struct{ Dir string }
	if err := json.Unmarshal(out, &at); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-C", at.Dir, "-trimpath", "-o", program, m.program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, strings.TrimSpace(string(text)))
	}
	return program, nil
}
