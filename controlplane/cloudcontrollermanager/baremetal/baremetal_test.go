package baremetal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudprovider "k8s.io/cloud-provider"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func node(name, id string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: id}}
}

// TestAnswers: only what the file says is gone is gone.
func TestAnswers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machines.yaml")
	write(t, file, "instances: [{name: a, zone: z}, {name: b, providerID: 'x://b', shutdown: true}, {name: c, exists: false}]")
	p, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	unlisted := " is not listed in " + file + "; list it there, with exists: false if the machine is gone"
	of := func(name string) string { // a node that says another machine's ID of itself
		return "node " + name + ` has the provider ID "x://b", which ` + file + " gives to b; correct the list, or the node's --provider-id"
	}
	for _, c := range []struct {
		node                       *corev1.Node
		exists, shutdown, metadata string
	}{
		{node("a", ""), "true <nil>", "false <nil>", "knarr://a z"},
		{node("a", "knarr://a"), "true <nil>", "false <nil>", "knarr://a z"},
		{node("b", "x://b"), "true <nil>", "true <nil>", "x://b "},
		{node("evil", "x://b"), "false " + of("evil"), "false " + of("evil"), of("evil")},
		{node("c", ""), "false <nil>", "false <nil>", "instance not found: " + file + " lists the machine of node c as gone"},
		{node("c", "x://b"), "false " + of("c"), "false " + of("c"), of("c")},
		{node("d", ""), `false node d with provider ID ""` + unlisted, `false node d with provider ID ""` + unlisted, `node d with provider ID ""` + unlisted},
		{node("a", "aws://a"), `false node a with provider ID "aws://a"` + unlisted, `false node a with provider ID "aws://a"` + unlisted, `node a with provider ID "aws://a"` + unlisted},
	} {
		exists, err := p.InstanceExists(t.Context(), c.node)
		if got := fmt.Sprint(exists, " ", err); got != c.exists {
			t.Errorf("%s: exists %s, want %s", c.node.Name, got, c.exists)
		}
		off, err := p.InstanceShutdown(t.Context(), c.node)
		if got := fmt.Sprint(off, " ", err); got != c.shutdown {
			t.Errorf("%s: shutdown %s, want %s", c.node.Name, got, c.shutdown)
		}
		m, err := p.InstanceMetadata(t.Context(), c.node)
		got := fmt.Sprint(err)
		if err == nil {
			got = m.ProviderID + " " + m.Zone
		}
		if got != c.metadata {
			t.Errorf("%s: metadata %s, want %s", c.node.Name, got, c.metadata)
		}
	}
	if _, err := p.InstanceMetadata(t.Context(), node("c", "")); !errors.Is(err, cloudprovider.InstanceNotFound) {
		t.Error(err)
	}
}

// TestFollow: a file that cannot be used is no statement about any machine.
func TestFollow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machines.yaml")
	write(t, file, "instances: [{name: a, exists: false}]")
	p, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	changes, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- p.Follow(ctx, func() { changes <- struct{}{} }) }()
	write(t, file, "instances: [{name: a, zone: new}]")
	select {
	case <-changes:
	case <-ctx.Done():
		t.Fatal("the change was not seen")
	}
	if m, err := p.InstanceMetadata(ctx, node("a", "")); err != nil || m.Zone != "new" {
		t.Error(m, err)
	}
	for _, text := range []string{"instances: [{name: a, exists: fals}]", ""} {
		write(t, file, text)
		p.load()
		if exists, err := p.InstanceExists(ctx, node("a", "")); err == nil || !strings.Contains(err.Error(), "--cloud-config: ") {
			t.Errorf("%q: exists %t, %v", text, exists, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p.load()
	if _, err := p.InstanceExists(ctx, node("a", "")); err == nil {
		t.Error("a file that is gone says something")
	}
	write(t, file, "instances: [{name: a}]")
	p.load()
	if exists, err := p.InstanceExists(ctx, node("a", "")); err != nil || !exists {
		t.Error(exists, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	for file, want := range map[string]string{
		"":                                 "--cloud-config: the cloud provider knarr needs the file",
		filepath.Join(t.TempDir(), "none"): "no such file",
	} {
		if _, err := Open(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", file, err)
		}
	}
}
