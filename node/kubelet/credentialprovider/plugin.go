package credentialprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeletconfig "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	kjson "sigs.k8s.io/json"
)

const (
	// runTime is how long a program may take, upstream's.
	runTime = time.Minute
	// exitTime is how long its output is waited for when it has ended, should a child of
	// it hold that open.
	exitTime = 5 * time.Second
	// maxAnswer and maxComplaint bound what a program writes.
	maxAnswer, maxComplaint = 256 << 10, 4 << 10
	// maxRuns bounds how many runs of one program there are at once.
	maxRuns = 16
)

// A program is a plugin's executable.
type program struct {
	name, path, apiVersion string
	args                   []string
	env                    []kubeletconfig.ExecEnvVar
	slots                  chan struct{}
	ran                    func(name string, took time.Duration, failed bool)
}

// run executes the program with a request and returns its answer.
func (p *program) run(ctx context.Context, r *api.CredentialProviderRequest) (*api.CredentialProviderResponse, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.TypeMeta = metav1.TypeMeta{Kind: "CredentialProviderRequest", APIVersion: p.apiVersion}
	in, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("failed to encode auth request: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	out, complaint := &bounded{most: maxAnswer, fail: true}, &bounded{most: maxComplaint}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), out, complaint
	cmd.Env = os.Environ()
	for _, e := range p.env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	// What the program has started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = exitTime
	began := time.Now()
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case out.full:
		err = fmt.Errorf("its output is larger than %d bytes", out.most)
	}
	p.ran(p.name, time.Since(began), err != nil)
	if err != nil {
		return nil, fmt.Errorf("error execing credential provider plugin %s for image %s: %w: %s", p.name, r.Image, err, complaint.b.String())
	}
	return decodeAnswer(out.b.Bytes(), p.apiVersion)
}

// decodeAnswer reads what a program wrote. Errors do not quote it, as credentials are in it.
func decodeAnswer(b []byte, apiVersion string) (*api.CredentialProviderResponse, error) {
	var kind metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b, &kind); err != nil {
		return nil, errors.New("error reading GVK from response: it is no object of JSON")
	}
	if gv := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind).GroupVersion().String(); gv != apiVersion {
		return nil, fmt.Errorf("apiVersion from credential plugin response did not match expected apiVersion:%s, actual apiVersion:%s", apiVersion, gv)
	}
	r := &api.CredentialProviderResponse{}
	unknown, err := kjson.UnmarshalStrict(b, r)
	if err != nil || len(unknown) > 0 || kind.Kind != "CredentialProviderResponse" {
		return nil, errors.New("error decoding credential provider plugin response from stdout")
	}
	if !slices.Contains([]api.PluginCacheKeyType{api.ImagePluginCacheKeyType, api.RegistryPluginCacheKeyType, api.GlobalPluginCacheKeyType}, r.CacheKeyType) {
		return nil, fmt.Errorf("credential provider plugin did not return a valid cacheKeyType: %s", r.CacheKeyType)
	}
	return r, nil
}

// bounded takes so many bytes; what is more is dropped, or fails and so ends the program.
type bounded struct {
	b          bytes.Buffer
	most       int
	fail, full bool
}

// Write takes what there is room for.
func (w *bounded) Write(p []byte) (int, error) {
	room := min(w.most-w.b.Len(), len(p))
	w.b.Write(p[:room])
	if room < len(p) && w.fail {
		w.full = true
		return room, io.ErrShortWrite
	}
	return len(p), nil
}
