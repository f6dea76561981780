package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/rogpeppe/go-internal/txtar"

	"knarr/internal/need"
	"knarr/internal/programs"
)

var update = flag.Bool("update", false, "write down what upstream's programs in the directory $KNARR_UPSTREAM answer")

// TestKubectl types what is in test/kubectl, and compares each answer with what
// upstream's servers answered when the file was recorded. With $KNARR_UPSTREAM
// it asks those servers instead, to see that the recorded answers are stable.
func TestKubectl(t *testing.T) { play(t, "../../test/kubectl/*.txt", nil) }

// TestHelm does the same with Helm, which make helm builds and names in
// $KNARR_HELM, and with the chart in test/helm.
func TestHelm(t *testing.T) {
	helm := os.Getenv("KNARR_HELM")
	if helm == "" {
		t.Skip("no Helm: make helm builds it and runs this test")
	}
	chart, err := filepath.Abs("../../test/helm/chart")
	must(t, err)
	play(t, "../../test/helm/*.txt", map[string]string{"bin/helm": helm, "chart": chart})
}

// play types scripts at one world, whose directory has links to what they use.
func play(t *testing.T, scripts string, links map[string]string) {
	if _, err := os.Stat("../../internal/programs/bin/kubectl.zst"); err != nil {
		need.Skip(t, "needs the embedded kubectl: make build")
	}
	upstream := os.Getenv("KNARR_UPSTREAM")
	if *update && upstream == "" {
		t.Fatal("-update records upstream's answers: name the directory of its programs in KNARR_UPSTREAM")
	}
	files, err := filepath.Glob(scripts)
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	w := newWorld(t, upstream)
	for name, to := range links {
		must(t, os.Symlink(to, filepath.Join(w.dir, name)))
	}
	t.Run("all", func(t *testing.T) {
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
				t.Parallel()
				replay(t, w, file)
			})
		}
	})
}

// replay types one script's commands in a namespace and a directory of its own.
func replay(t *testing.T, w *world, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	script := txtar.Parse(text)
	h := w.session(t, strings.TrimSuffix(filepath.Base(file), ".txt"))
	for _, f := range script.Files {
		if err := os.WriteFile(filepath.Join(h.dir, f.Name), f.Data, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var got bytes.Buffer
	for _, l := range strings.SplitAfter(string(script.Comment), "\n") {
		switch command, is := strings.CutPrefix(l, "$ "); {
		case is:
			got.WriteString(l)
			got.WriteString(h.answer(t.Context(), strings.TrimSpace(command)))
		case strings.HasPrefix(l, "#"):
			got.WriteString(l)
		}
	}
	if *update {
		script.Comment = got.Bytes()
		if err := os.WriteFile(file, txtar.Format(script), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := diff.Diff("upstream", script.Comment, "here", got.Bytes()); d != nil {
		t.Errorf("%s", d)
	}
}

// A session types commands.
type session struct {
	dir string
	env []string
	w   *world
}

// session makes a namespace and somebody who works in it.
func (w *world) session(t *testing.T, name string) *session {
	h := &session{dir: t.TempDir(), w: w}
	config := strings.Replace(w.kubeconfig, "namespace: default", "namespace: "+name, 1)
	if err := os.WriteFile(filepath.Join(h.dir, "kubeconfig"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	h.env = []string{"HOME=" + h.dir, "KUBECONFIG=" + filepath.Join(h.dir, "kubeconfig"), "KUBECACHEDIR=" + filepath.Join(w.dir, "cache"),
		"WORLD=" + w.dir, "PATH=" + filepath.Join(w.dir, "bin") + ":" + os.Getenv("PATH"), "TMPDIR=" + h.dir, "LC_ALL=C"}
	out := h.answer(t.Context(), "kubectl get namespace "+name+" >/dev/null 2>&1 || kubectl create namespace "+name+"; kubectl wait --for=create serviceaccount/default --timeout=20s")
	if !strings.Contains(out, "condition met") {
		t.Fatal(out)
	}
	return h
}

// answer is what a command says, and how it ends, with all that differs from
// run to run replaced.
func (h *session) answer(ctx context.Context, command string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Env, cmd.WaitDelay = h.dir, h.env, time.Second
	out, err := cmd.CombinedOutput()
	output := steady(strings.NewReplacer(h.dir, "$WORK", h.w.dir, "$WORLD").Replace(string(out)))
	if output != "" && !strings.HasSuffix(output, "\n") {
		output += "\n"
	}
	if err != nil {
		output += fmt.Sprintf("[%v]\n", err)
	}
	// What begins as commands and files do is set apart.
	lines := strings.SplitAfter(output, "\n")
	for i, l := range lines {
		for _, start := range []string{"$ ", "#", "-- "} {
			if strings.HasPrefix(l, start) {
				lines[i] = " " + l
			}
		}
	}
	return strings.Join(lines, "")
}

// A signal that comes while kubectl is being unpacked ends the command, and not what
// takes its place.
func TestSignalBeforeKubectl(t *testing.T) {
	if _, err := programs.Read(programs.Kubectl); errors.Is(err, programs.ErrMissing) {
		need.Skip(t, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(signalled{syscall.SIGTERM})
	if err := kubectl(ctx, []string{"version", "--client"}); err == nil || err.Error() != "signal: terminated" {
		t.Error(err)
	}
}
