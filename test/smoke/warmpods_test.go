package smoke

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/need"
)

const (
	warmPods, claims = 30, 25
	sandboxImage     = "knarr.test/agent-sandbox-controller:1"
	// The manifest's arguments follow. A burst of claims comes before its replacements, as
	// docs/warm-pods.md has it.
	sandboxCommand = "[/app, --sandbox-warm-pool-replenish-delay=5s, --disable-claim-events, --disable-claim-observability-annotations]"
	claimsPath     = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/smoke/sandboxclaims"
)

// A sandboxClaim is what is read of one.
type sandboxClaim struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Conditions []metav1.Condition `json:"conditions"`
		Sandbox    struct {
			Name string `json:"name"`
		} `json:"sandbox"`
	} `json:"status"`
}

func (s *sandboxClaim) ready() bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c metav1.Condition) bool { return c.Type == "Ready" && c.Status == metav1.ConditionTrue })
}

// TestWarmPods installs kubernetes-sigs/agent-sandbox, whose sources are where
// KNARR_AGENT_SANDBOX says, by its own manifests, and claims pods that it keeps ready: each
// claim gets one that was there before it.
func TestWarmPods(t *testing.T) {
	from := os.Getenv("KNARR_AGENT_SANDBOX")
	if from == "" {
		t.Skip("it needs the sources of kubernetes-sigs/agent-sandbox: make warm-pods SANDBOX=DIR")
	}
	need.Root(t)
	pods := buildImage(t)
	archive := sandboxController(t, from)
	c := newCluster(t)
	c.start()
	c.connect()
	c.wait("node Ready", time.Minute, c.nodeReady)
	for _, a := range []string{pods, archive} {
		if out, err := exec.Command(binary, "images", "--data-dir", c.dir, "load", a).CombinedOutput(); err != nil {
			t.Fatalf("knarr images load: %v\n%s", err, out)
		}
	}
	c.kubectl("apply", "--server-side", "-f", filepath.Join(from, "k8s", "crds"))
	for _, file := range []string{"controller", "rbac.generated", "extensions", "extensions-rbac.generated", "extensions.controller"} {
		b, err := os.ReadFile(filepath.Join(from, "k8s", file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(b), "\n")
		for i, line := range lines {
			if before, _, found := strings.Cut(line, "image: ko://"); found {
				lines[i] = before + "image: " + sandboxImage + "\n" + before + "command: " + sandboxCommand
			}
		}
		c.apply(strings.Join(lines, "\n"))
	}
	c.kubectl("-n", "agent-sandbox-system", "rollout", "status", "deployment/agent-sandbox-controller", "--timeout=2m")
	c.kubectl("create", "namespace", "smoke")
	c.apply(fmt.Sprintf(warmPool, warmPods))
	c.wait("warm pods Ready", 5*time.Minute, func(context.Context) (bool, error) {
		out, err := c.try("-n", "smoke", "get", "sandboxwarmpool", "warm", "-o", "jsonpath={.status.readyReplicas}")
		return out == fmt.Sprint(warmPods), err
	})
	warm := strings.Fields(c.kubectl("-n", "smoke", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}"))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	rest := c.client.CoreV1().RESTClient()
	stream, err := rest.Get().AbsPath(claimsPath).Param("watch", "true").SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	events := json.NewDecoder(stream)
	var took []time.Duration
	for i := range claims {
		name := fmt.Sprint("claim-", i)
		began := time.Now()
		if err := rest.Post().AbsPath(claimsPath).SetHeader("Content-Type", "application/json").Body([]byte(fmt.Sprintf(warmClaim, name))).Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
		for {
			var e struct{ Object sandboxClaim }
			if err := events.Decode(&e); err != nil {
				t.Fatalf("the watch of claims: %v", err)
			}
			if e.Object.Name != name || !e.Object.ready() {
				continue
			}
			took = append(took, time.Since(began))
			if !slices.Contains(warm, e.Object.Status.Sandbox.Name) {
				t.Errorf("%s got the pod %s, which was not there before", name, e.Object.Status.Sandbox.Name)
			}
			break
		}
	}
	slices.Sort(took)
	t.Logf("%d claims of warm pods, create call to Ready seen on a watch: p50 %v, p99 %v", claims, took[len(took)/2], took[len(took)-1])
}

const warmPool = `
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: warm, namespace: smoke}
spec:
  networkPolicyManagement: Unmanaged
  podTemplate:
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: app, image: "knarr.test/app:1", imagePullPolicy: IfNotPresent, command: [/bin/sleep, "100000"]}]
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: warm, namespace: smoke}
spec: {replicas: %d, sandboxTemplateRef: {name: warm}}
`

const warmClaim = `{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": %q}, "spec": {"warmPoolRef": {"name": "warm"}}}`

// sandboxController is an archive with the project's controller: bin/agent-sandbox-controller
// of its sources, built if it is not there.
func sandboxController(t *testing.T, from string) (archive string) {
	t.Helper()
	from, err := filepath.Abs(from)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(from, "bin", "agent-sandbox-controller")
	if _, err := os.Stat(program); err != nil {
		build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "./cmd/agent-sandbox-controller")
		build.Dir, build.Env = from, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build agent-sandbox: %v\n%s", err, out)
		}
	}
	archive = filepath.Join(t.TempDir(), "sandbox.tar")
	if err := writeImage(archive, sandboxImage, "/bin/busybox", program); err != nil {
		t.Fatal(err)
	}
	return archive
}
