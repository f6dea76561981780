package registry

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateJob(_ context.Context, j, old *batchv1.Job) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	if old == nil {
		f.add(validateMadeSelector(j))
	}
	f.add(validateJobSpec(&j.Spec, at))
	if j.Spec.Selector == nil {
		f.required(at.Child("selector"), "")
	} else {
		f.add(metavalidation.ValidateLabelSelector(j.Spec.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(labels.Set(j.Spec.Template.Labels)) {
		f.invalid(at.Child("template", "metadata", "labels"), j.Spec.Template.Labels, "`selector` does not match template `labels`")
	}
	if old != nil {
		f.add(validateJobUpdate(j, old, at))
		return f.list
	}
	if isIndexed(&j.Spec) && deref(j.Spec.Completions, 0) > 0 {
		host := fmt.Sprintf("%s-%d", j.Name, *j.Spec.Completions-1)
		if len(utilvalidation.IsDNS1123Label(host)) > 0 {
			f.invalid(field.NewPath("metadata", "name"), j.Name, "will not able to create pod with invalid DNS label: "+host)
		}
	}
	return f.list
}

func isIndexed(s *batchv1.JobSpec) bool {
	return deref(s.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

// validateMadeSelector: a selector that is not the user's is the one made
// from the job's UID.
func validateMadeSelector(j *batchv1.Job) field.ErrorList {
	if deref(j.Spec.ManualSelector, false) || j.Spec.Selector == nil {
		return nil
	}
	var f faults
	if j.UID == "" {
		f.required(field.NewPath("metadata", "uid"), "")
	}
	want := labels.Set{oldJobUID: string(j.UID), oldJobName: j.Name,
		batchv1.ControllerUidLabel: string(j.UID), batchv1.JobNameLabel: j.Name}
	at := field.NewPath("spec", "template", "metadata", "labels")
	for _, key := range sortedKeys(want) {
		switch value, ok := j.Spec.Template.Labels[key]; {
		case !ok:
			f.required(at.Key(key), fmt.Sprintf("must be '%s'", want[key]))
		case value != want[key]:
			f.invalid(at.Key(key), j.Spec.Template.Labels, fmt.Sprintf("must be '%s'", want[key]))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(want) {
		f.invalid(field.NewPath("spec", "selector"), j.Spec.Selector, "`selector` not auto-generated")
	}
	return f.list
}

const (
	indexedMost     = 100_000
	manyCompletions = 100_000
	manyParallelism = 10_000
	manyFailed      = 10_000
)

func validateJobSpec(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	var f faults
	f.add(nonnegativeOpt(s.Parallelism, at.Child("parallelism")))
	f.add(nonnegativeOpt(s.Completions, at.Child("completions")))
	f.add(nonnegativeOpt(s.ActiveDeadlineSeconds, at.Child("activeDeadlineSeconds")))
	f.add(nonnegativeOpt(s.BackoffLimit, at.Child("backoffLimit")))
	f.add(nonnegativeOpt(s.TTLSecondsAfterFinished, at.Child("ttlSecondsAfterFinished")))
	f.add(nonnegativeOpt(s.BackoffLimitPerIndex, at.Child("backoffLimitPerIndex")))
	if s.MaxFailedIndexes != nil {
		f.add(nonnegative(*s.MaxFailedIndexes, at.Child("maxFailedIndexes")))
		if s.BackoffLimitPerIndex == nil {
			f.required(at.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified")
		}
	}
	if m := s.ManagedBy; m != nil {
		f.add(utilvalidation.IsDomainPrefixedPath(at.Child("managedBy"), *m))
		if len(*m) > 63 {
			f.list = append(f.list, field.TooLong(at.Child("managedBy"), "", 63))
		}
	}
	if m := s.CompletionMode; m != nil {
		among(&f, *m, at.Child("completionMode"), batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)
	}
	if isIndexed(s) {
		f.add(validateIndexed(s, at))
	} else if deref(s.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.NonIndexedCompletion {
		const needs = "requires indexed completion mode"
		if s.BackoffLimitPerIndex != nil {
			f.invalid(at.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, needs)
		}
		if s.MaxFailedIndexes != nil {
			f.invalid(at.Child("maxFailedIndexes"), *s.MaxFailedIndexes, needs)
		}
	}
	f.add(validateFailurePolicy(s, at.Child("podFailurePolicy")))
	f.add(validateSuccessPolicy(s, at.Child("successPolicy")))
	if p := s.PodReplacementPolicy; p != nil {
		if s.PodFailurePolicy != nil {
			among(&f, *p, at.Child("podReplacementPolicy"), batchv1.Failed)
		} else {
			f.add(oneOf(*p, at.Child("podReplacementPolicy"), batchv1.Failed, batchv1.TerminatingOrFailed))
		}
	}
	f.add(validateTemplate(&s.Template, at.Child("template")))
	restart := at.Child("template", "spec", "restartPolicy")
	switch p := s.Template.Spec.RestartPolicy; {
	case p == corev1.RestartPolicyAlways || p == "":
		f.required(restart, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever))
	case p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever:
		among(&f, p, restart, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	case s.PodFailurePolicy != nil && p != corev1.RestartPolicyNever:
		f.invalid(restart, p, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever))
	}
	return f.list
}

func validateIndexed(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	var f faults
	if s.Completions == nil {
		f.required(at.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion))
	}
	if p := s.Parallelism; p != nil && *p > indexedMost {
		f.invalid(at.Child("parallelism"), *p, fmt.Sprintf("must be less than or equal to %d when completion mode is %s", indexedMost, batchv1.IndexedCompletion))
	}
	m := s.MaxFailedIndexes
	if m != nil && s.Completions != nil && *m > *s.Completions {
		f.invalid(at.Child("maxFailedIndexes"), *m, "must be less than or equal to completions")
	}
	if m != nil && *m > indexedMost {
		f.invalid(at.Child("maxFailedIndexes"), *m, fmt.Sprintf("must be less than or equal to %d", indexedMost))
	}
	if deref(s.Completions, 0) <= manyCompletions || s.BackoffLimitPerIndex == nil {
		return f.list
	}
	const limit = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if m == nil {
		f.required(at.Child("maxFailedIndexes"), fmt.Sprintf("must be specified when completions is above %d", manyCompletions))
	} else if *m > manyFailed {
		f.invalid(at.Child("maxFailedIndexes"), *m, fmt.Sprintf(limit, manyFailed, manyCompletions))
	}
	if p := s.Parallelism; p != nil && *p > manyParallelism {
		f.invalid(at.Child("parallelism"), *p, fmt.Sprintf(limit, manyParallelism, manyCompletions))
	}
	return f.list
}

func validateFailurePolicy(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	if s.PodFailurePolicy == nil {
		return nil
	}
	var f faults
	rules := s.PodFailurePolicy.Rules
	if len(rules) > 20 {
		f.list = append(f.list, field.TooMany(at.Child("rules"), len(rules), 20))
	}
	actions := []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore}
	for i := range rules {
		r, p := &rules[i], at.Child("rules").Index(i)
		switch {
		case r.Action == "":
			f.required(p.Child("action"), fmt.Sprintf("valid values: %q", actions))
		case r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil:
			f.invalid(p.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set")
		default:
			among(&f, r.Action, p.Child("action"), actions...)
		}
		if r.OnExitCodes != nil {
			f.add(validateExitCodes(r.OnExitCodes, &s.Template.Spec, p.Child("onExitCodes")))
		}
		if n := len(r.OnPodConditions); n > 20 {
			f.list = append(f.list, field.TooMany(p.Child("onPodConditions"), n, 20))
		}
		states := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		for j, c := range r.OnPodConditions {
			q := p.Child("onPodConditions").Index(j)
			f.add(qualifiedName(string(c.Type), q.Child("type")))
			if c.Status == "" {
				f.required(q.Child("status"), fmt.Sprintf("valid values: %q", states))
			} else {
				among(&f, c.Status, q.Child("status"), states...)
			}
		}
		if r.OnExitCodes != nil && len(r.OnPodConditions) > 0 {
			f.invalid(p, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported")
		}
		if r.OnExitCodes == nil && len(r.OnPodConditions) == 0 {
			f.invalid(p, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required")
		}
	}
	return f.list
}

func validateExitCodes(c *batchv1.PodFailurePolicyOnExitCodesRequirement, s *corev1.PodSpec, at *field.Path) field.ErrorList {
	var f faults
	operators := []batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	if c.Operator == "" {
		f.required(at.Child("operator"), fmt.Sprintf("valid values: %q", operators))
	} else {
		among(&f, c.Operator, at.Child("operator"), operators...)
	}
	if c.ContainerName != nil && !hasContainer(s, *c.ContainerName) {
		f.invalid(at.Child("containerName"), *c.ContainerName, "must be one of the container or initContainer names in the pod template")
	}
	p := at.Child("values")
	if n := len(c.Values); n == 0 {
		f.invalid(p, c.Values, "at least one value is required")
	} else if n > 255 {
		f.list = append(f.list, field.TooMany(p, n, 255))
	}
	seen := map[int32]bool{}
	for i, v := range c.Values {
		if v == 0 && c.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			f.invalid(p.Index(i), v, "must not be 0 for the In operator")
		}
		if seen[v] {
			f.duplicate(p.Index(i), v)
		}
		seen[v] = true
	}
	if !slices.IsSorted(c.Values) {
		f.invalid(p, c.Values, "must be ordered")
	}
	return f.list
}

func validateSuccessPolicy(s *batchv1.JobSpec, at *field.Path) field.ErrorList {
	if s.SuccessPolicy == nil {
		return nil
	}
	var f faults
	if !isIndexed(s) {
		f.invalid(at, *s.SuccessPolicy, "requires indexed completion mode")
		return f.list
	}
	rules := s.SuccessPolicy.Rules
	if len(rules) == 0 {
		f.required(at.Child("rules"), "at least one rules must be specified when the successPolicy is specified")
	}
	if len(rules) > 20 {
		f.list = append(f.list, field.TooMany(at.Child("rules"), len(rules), 20))
	}
	all := deref(s.Completions, 0)
	for i := range rules {
		r, p := &rules[i], at.Child("rules").Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			f.required(p, "at least one of succeededCount or succeededIndexes must be specified")
		}
		var named int32
		if r.SucceededIndexes != nil {
			if len(*r.SucceededIndexes) > 64*1024 {
				f.list = append(f.list, field.TooLong(p.Child("succeededIndexes"), "", 64*1024))
			}
			var err error
			if named, err = countIndexes(*r.SucceededIndexes, all); err != nil {
				f.invalid(p.Child("succeededIndexes"), *r.SucceededIndexes, "error parsing succeededIndexes: "+err.Error())
			}
		}
		if c := r.SucceededCount; c != nil {
			q := p.Child("succeededCount")
			f.add(nonnegative(*c, q))
			if *c > all {
				f.invalid(q, *c, fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", all))
			}
			if r.SucceededIndexes != nil && *c > named {
				f.invalid(q, *c, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", named))
			}
		}
	}
	return f.list
}

// countIndexes counts what a list like "1,3-5" names, all below limit and in
// order.
func countIndexes(list string, limit int32) (total int32, err error) {
	if list == "" {
		return 0, nil
	}
	number := func(s string) (int32, error) {
		n, err := strconv.Atoi(s)
		switch {
		case err != nil:
			return 0, fmt.Errorf("cannot convert string to integer for index: %q", s)
		case n >= int(limit):
			return 0, fmt.Errorf("too large index: %q", s)
		}
		return int32(n), nil
	}
	last := int32(-1)
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if strings.Contains(to, "-") {
			return 0, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", part)
		}
		x, err := number(from)
		if err != nil {
			return 0, err
		}
		y := x
		if ranged {
			if y, err = number(to); err != nil {
				return 0, err
			}
			if x >= y {
				return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", x, y)
			}
		}
		if last >= x {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, x)
		}
		total += y - x + 1
		last = y
	}
	return total, nil
}

// validateJobUpdate: what a job does is fixed once it runs; where its pods
// may go can change while it is suspended and never started.
func validateJobUpdate(j, old *batchv1.Job, at *field.Path) field.ErrorList {
	var f faults
	now, was := &j.Spec, &old.Spec
	completions := at.Child("completions")
	switch {
	case !isIndexed(now):
		f.add(unchanged(now.Completions, was.Completions, completions))
	case now.Completions != nil && !same(now.Completions, was.Completions) && *now.Completions != deref(now.Parallelism, 0):
		f.invalid(completions, now.Completions, "can only be modified in tandem with spec.parallelism")
	}
	f.add(unchanged(now.Selector, was.Selector, at.Child("selector")))
	f.add(validateJobTemplateUpdate(j, old, at))
	for _, v := range []struct {
		name    string
		is, was any
	}{
		{"completionMode", now.CompletionMode, was.CompletionMode},
		{"podFailurePolicy", now.PodFailurePolicy, was.PodFailurePolicy},
		{"backoffLimitPerIndex", now.BackoffLimitPerIndex, was.BackoffLimitPerIndex},
		{"managedBy", now.ManagedBy, was.ManagedBy},
		{"successPolicy", now.SuccessPolicy, was.SuccessPolicy},
	} {
		f.add(unchanged(v.is, v.was, at.Child(v.name)))
	}
	return f.list
}

func validateJobTemplateUpdate(j, old *batchv1.Job, at *field.Path) field.ErrorList {
	now, was := &j.Spec.Template, old.Spec.Template.DeepCopy()
	suspended := deref(old.Spec.Suspend, false)
	if suspended && old.Status.StartTime == nil {
		a, b := &now.Spec, &was.Spec
		switch {
		case a.Affinity == nil && b.Affinity != nil:
			b.Affinity.NodeAffinity = nil
			if same(*b.Affinity, corev1.Affinity{}) {
				b.Affinity = nil
			}
		case a.Affinity != nil && b.Affinity == nil:
			b.Affinity = &corev1.Affinity{NodeAffinity: a.Affinity.NodeAffinity}
		case a.Affinity != nil:
			b.Affinity.NodeAffinity = a.Affinity.NodeAffinity
		}
		b.NodeSelector, b.Tolerations, b.SchedulingGates = a.NodeSelector, a.Tolerations, a.SchedulingGates
		was.Annotations, was.Labels = now.Annotations, now.Labels
	}
	if !suspended {
		return unchanged(now, was, at.Child("template"))
	}
	resources := func(now, was []corev1.Container) {
		for i := range now {
			if len(now) == len(was) && now[i].Name == was[i].Name {
				was[i].Resources = now[i].Resources
			}
		}
	}
	resources(now.Spec.Containers, was.Spec.Containers)
	resources(now.Spec.InitContainers, was.Spec.InitContainers)
	return unchanged(now.Spec, was.Spec, at.Child("template.spec"))
}

func validateJobStatus(_ context.Context, j, old *batchv1.Job) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	s, o := &j.Status, &old.Status
	f.add(nonnegativeCounts(at, count{"active", int64(s.Active)}, count{"succeeded", int64(s.Succeeded)}, count{"failed", int64(s.Failed)},
		count{"ready", int64(deref(s.Ready, 0))}, count{"terminating", int64(deref(s.Terminating, 0))}))
	is := func(list []batchv1.JobCondition, typ batchv1.JobConditionType) bool {
		return slices.ContainsFunc(list, func(c batchv1.JobCondition) bool { return c.Type == typ && c.Status == corev1.ConditionTrue })
	}
	complete, failed := is(s.Conditions, batchv1.JobComplete), is(s.Conditions, batchv1.JobFailed)
	target, criteria := is(s.Conditions, batchv1.JobFailureTarget), is(s.Conditions, batchv1.JobSuccessCriteriaMet)
	conditions := at.Child("conditions")
	refuse := func(bad bool, msg string) {
		if bad {
			f.invalid(conditions, field.OmitValueType{}, msg)
		}
	}
	if u := s.UncountedTerminatedPods; u != nil {
		seen := map[types.UID]bool{}
		for _, list := range []struct {
			name string
			uids []types.UID
		}{{"succeeded", u.Succeeded}, {"failed", u.Failed}} {
			for i, uid := range list.uids {
				p := at.Child("uncountedTerminatedPods", list.name).Index(i)
				if uid == "" {
					f.invalid(p, uid, "must not be empty")
				} else if seen[uid] {
					f.duplicate(p, uid)
				}
				seen[uid] = true
			}
		}
	}
	refuse(complete && failed, "cannot set Complete=True and Failed=true conditions")
	refuse(complete && target, "cannot set Complete=True and FailureTarget=true conditions")
	refuse(failed && !target && !is(o.Conditions, batchv1.JobFailed), "cannot set Failed=True condition without the FailureTarget=true condition")
	refuse(complete && !criteria && !is(o.Conditions, batchv1.JobComplete), "cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	refuse(criteria && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions")
	refuse(criteria && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	if s.CompletionTime != nil && !complete {
		f.invalid(at.Child("completionTime"), s.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
	}
	if s.CompletionTime == nil && complete {
		f.required(at.Child("completionTime"), "completionTime is required for Complete jobs")
	}
	if s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Before(s.StartTime) {
		f.invalid(at.Child("completionTime"), s.CompletionTime, "must be equal to or after `startTime`")
	}
	if complete || failed {
		f.add(validateFinishedJob(s, at))
	}
	if s.CompletedIndexes != "" && !isIndexed(&j.Spec) {
		f.invalid(at.Child("completedIndexes"), s.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if j.Spec.Completions != nil {
		if _, err := countIndexes(s.CompletedIndexes, *j.Spec.Completions); err != nil {
			f.invalid(at.Child("completedIndexes"), s.CompletedIndexes, "error parsing completedIndexes: "+err.Error())
		}
	}
	if s.FailedIndexes != nil && j.Spec.BackoffLimitPerIndex == nil {
		f.invalid(at.Child("failedIndexes"), *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
	if s.Ready != nil && *s.Ready > s.Active {
		f.invalid(at.Child("ready"), *s.Ready, "cannot set more ready pods than active")
	}
	for _, typ := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		refuse(is(o.Conditions, typ) && !is(s.Conditions, typ), fmt.Sprintf("cannot disable the terminal %s=True condition", typ))
	}
	refuse(is(o.Conditions, batchv1.JobSuccessCriteriaMet) && !criteria, "cannot disable the SuccessCriteriaMet=True condition")
	if s.Failed < o.Failed {
		f.invalid(at.Child("failed"), s.Failed, "cannot decrease the failed counter")
	}
	if s.Succeeded < o.Succeeded && !isIndexed(&j.Spec) {
		f.invalid(at.Child("succeeded"), s.Succeeded, "cannot decrease the succeeded counter")
	}
	if s.CompletionTime != nil && o.CompletionTime != nil && !s.CompletionTime.Equal(o.CompletionTime) {
		f.invalid(at.Child("completionTime"), s.CompletionTime, "field is immutable")
	}
	if o.StartTime != nil && !o.StartTime.Equal(s.StartTime) && !deref(j.Spec.Suspend, false) {
		f.invalid(at.Child("startTime"), s.StartTime, "field is immutable for unsuspended job once set")
	}
	return f.list
}

func validateFinishedJob(s *batchv1.JobStatus, at *field.Path) field.ErrorList {
	var f faults
	if s.Active > 0 {
		f.invalid(at.Child("active"), s.Active, "active>0 is invalid for finished job")
	}
	if s.StartTime == nil {
		f.required(at.Child("startTime"), "startTime is required for finished job")
	}
	if u := s.UncountedTerminatedPods; u != nil && len(u.Failed)+len(u.Succeeded) > 0 {
		f.invalid(at.Child("uncountedTerminatedPods"), u, "must be empty for finished job")
	}
	if deref(s.Terminating, 0) > 0 {
		f.invalid(at.Child("terminating"), s.Terminating, "terminating>0 is invalid for finished job")
	}
	return f.list
}
