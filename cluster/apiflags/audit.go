package apiflags

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"knarr/controlplane/apiserver/audit"
)

// auditing is the flags of the audit log.
type auditing struct {
	policy, path, format string
	age, backups, size   int
	compress             bool
	kubeconfig           string
	backoff              time.Duration
	log, webhook         auditBackend
}

// auditBackend is how events go to the log, or to the webhook.
type auditBackend struct {
	name, mode, version string
	batch               audit.Batching
	short               audit.Truncating
}

func (a *auditing) bind(f *pflag.FlagSet) {
	f.StringVar(&a.policy, "audit-policy-file", "", "`file` that says which requests are written down, and how much of them")
	f.StringVar(&a.path, "audit-log-path", "", "`file` they are written to; - is standard output")
	f.StringVar(&a.format, "audit-log-format", audit.JSON, "`format` of that file: json or legacy, which is one line of text an event")
	f.IntVar(&a.age, "audit-log-maxage", 366, "`days` to keep old files of it; 0 is for ever")
	f.IntVar(&a.backups, "audit-log-maxbackup", 100, "`number` of old files to keep; 0 is all")
	f.IntVar(&a.size, "audit-log-maxsize", 100, "`megabytes` at which a new file is begun; 0 is never")
	f.BoolVar(&a.compress, "audit-log-compress", false, "compress old files")
	f.StringVar(&a.kubeconfig, "audit-webhook-config-file", "", "kubeconfig `file` of a webhook they are sent to")
	const backoff = "`time` before sending again what could not be sent"
	f.DurationVar(&a.backoff, "audit-webhook-initial-backoff", 10*time.Second, backoff)
	f.DurationVar(&a.backoff, "audit-webhook-batch-initial-backoff", 10*time.Second, backoff)
	_ = f.MarkDeprecated("audit-webhook-batch-initial-backoff", "Deprecated, use --audit-webhook-initial-backoff instead.")
	a.log = auditBackend{name: "log", mode: "blocking", batch: audit.Batching{MaxSize: 1}}
	a.webhook = auditBackend{name: "webhook", mode: "batch", batch: audit.Batching{MaxSize: 400, MaxWait: 30 * time.Second, Throttle: true, PerSecond: 10, Burst: 15}}
	a.log.bind(f)
	a.webhook.bind(f)
}

func (o *auditBackend) bind(f *pflag.FlagSet) {
	b, t, name := &o.batch, &o.short, "audit-"+o.name
	f.StringVar(&o.mode, name+"-mode", o.mode, "`mode` of writing: batch, blocking, or blocking-strict, which refuses what cannot be written down")
	f.StringVar(&o.version, name+"-version", auditv1.SchemeGroupVersion.String(), "`version` of the events")
	f.IntVar(&b.Buffer, name+"-batch-buffer-size", 10000, "`number` of events that may wait in mode batch; more are dropped")
	f.IntVar(&b.MaxSize, name+"-batch-max-size", b.MaxSize, "`number` of events that go at once")
	f.DurationVar(&b.MaxWait, name+"-batch-max-wait", b.MaxWait, "`time` to wait for so many")
	f.BoolVar(&b.Throttle, name+"-batch-throttle-enable", b.Throttle, "bound how often they go")
	f.Float32Var(&b.PerSecond, name+"-batch-throttle-qps", b.PerSecond, "`number` of times a second, on average")
	f.IntVar(&b.Burst, name+"-batch-throttle-burst", b.Burst, "`number` of times at once, after a while of fewer")
	f.BoolVar(&t.Enabled, name+"-truncate-enabled", false, "leave bodies out of events that are too long, and drop those that still are")
	f.Int64Var(&t.MaxBatch, name+"-truncate-max-batch-size", 10<<20, "`bytes` of events that go at once")
	f.Int64Var(&t.MaxEvent, name+"-truncate-max-event-size", 100<<10, "`bytes` of an event that is not too long")
}

var modes = []string{"batch", "blocking", "blocking-strict"}

// check names what is wrong with the flags of a backend that is in use.
func (o *auditBackend) check() (errs []error) {
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if !slices.Contains(modes, o.mode) {
		note(fmt.Errorf("invalid audit %s mode %s, allowed modes are %q", o.name, o.mode, strings.Join(modes, ",")))
	}
	if o.mode == "batch" {
		note(o.batch.Validate(o.name))
	}
	note(o.short.Validate(o.name))
	if gv, err := schema.ParseGroupVersion(o.version); err != nil {
		note(err)
	} else if gv != auditv1.SchemeGroupVersion {
		note(fmt.Errorf("invalid group version, allowed versions are %q", []schema.GroupVersion{auditv1.SchemeGroupVersion}))
	}
	return errs
}

func (a *auditing) check() error {
	var errs []error
	if a.path != "" {
		errs = a.log.check()
		if a.format != audit.JSON && a.format != audit.Legacy {
			errs = append(errs, fmt.Errorf("invalid audit log format %s, allowed formats are %q", a.format, audit.Legacy+","+audit.JSON))
		}
		for _, n := range []struct {
			name  string
			value int
		}{{"age", a.age}, {"backup", a.backups}, {"size", a.size}} {
			if n.value < 0 {
				errs = append(errs, fmt.Errorf("--audit-log-max%s %v can't be a negative number", n.name, n.value))
			}
		}
	}
	if a.kubeconfig != "" {
		errs = append(errs, a.webhook.check()...)
	}
	return joined(errs)
}

// load reads the policy and opens the log. Without a place to go to nothing is
// written down.
func (a *auditing) load() (*audit.Policy, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	switch {
	case a.policy != "":
	case a.path != "":
		return nil, errors.New("--audit-log-path: name the policy with --audit-policy-file")
	case a.kubeconfig != "":
		return nil, errors.New("--audit-webhook-config-file: name the policy with --audit-policy-file")
	default:
		return nil, nil
	}
	policy, err := audit.Load(a.policy)
	if err != nil {
		return nil, fmt.Errorf("--audit-policy-file: %w", err)
	}
	if a.path == "" && a.kubeconfig == "" {
		return nil, nil
	}
	if a.kubeconfig != "" {
		hook, err := audit.NewWebhook(a.kubeconfig, a.backoff)
		if err != nil {
			return nil, fmt.Errorf("--audit-webhook-config-file: %w", err)
		}
		a.webhook.open(policy, hook)
	}
	if a.path != "" {
		out, err := a.out()
		if err != nil {
			return nil, fmt.Errorf("--audit-log-path: %w", err)
		}
		a.log.open(policy, audit.NewLog(out, a.format))
	}
	return policy, nil
}

// open makes events go there.
func (o *auditBackend) open(p *audit.Policy, to interface {
	audit.Sink
	Send(context.Context, []*auditv1.Event) error
}) {
	var s audit.Sink = to
	if o.mode == "batch" {
		s = audit.NewBatch(o.batch, to.Send)
	}
	p.To(o.name, s, o.mode == "blocking-strict", o.short)
}

// out is the log, which only its owner may read.
func (a *auditing) out() (io.Writer, error) {
	if a.path == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(a.path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil || a.size == 0 {
		return f, err
	}
	return &lumberjack.Logger{
		Filename: a.path, MaxAge: a.age, MaxBackups: a.backups, MaxSize: a.size, Compress: a.compress,
	}, f.Close()
}
