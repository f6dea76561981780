/*
 * pause keeps a pod's namespaces open: it waits for signals, reaps every child
 * that ends (it is process 1 where the pod shares its process namespace) and
 * exits when told to. It stands without a C library, so that the whole program
 * is a few kilobytes.
 *
 * With KNARR_PAUSE=confined first in its environment it lets the kernel refuse it
 * all other system calls: a filter of its own spares whoever starts it from
 * compiling one.
 */

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#if defined(__x86_64__)
enum { SYS_rt_sigprocmask = 14, SYS_rt_sigreturn = 15, SYS_wait4 = 61, SYS_rt_sigtimedwait = 128,
       SYS_prctl = 157, SYS_restart_syscall = 219, SYS_exit_group = 231 };
enum { ARCH = AUDIT_ARCH_X86_64 };

static long call(long n, long a, long b, long c, long d)
{
	long r;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return r;
}

__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall run\n");
#elif defined(__aarch64__)
enum { SYS_exit_group = 94, SYS_restart_syscall = 128, SYS_rt_sigprocmask = 135, SYS_rt_sigtimedwait = 137,
       SYS_rt_sigreturn = 139, SYS_prctl = 167, SYS_wait4 = 260 };
enum { ARCH = AUDIT_ARCH_AARCH64 };

static long call(long n, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl run\n");
#else
#error "pause knows the system calls of amd64 and arm64 only"
#endif

enum { SIG_BLOCK = 0, SIGINT = 2, SIGTERM = 15, SIGCHLD = 17, WNOHANG = 1, EPERM = 1, PR_SET_SECCOMP = 22 };

#define BIT(sig) (1UL << ((sig) - 1))

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW(nr) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static long confine(void)
{
	struct sock_filter rules[] = {
		LOAD(arch),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		LOAD(nr),
		ALLOW(SYS_rt_sigtimedwait),
		ALLOW(SYS_wait4),
		ALLOW(SYS_rt_sigprocmask),
		ALLOW(SYS_rt_sigreturn),
		ALLOW(SYS_restart_syscall),
		ALLOW(SYS_exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog program = {sizeof(rules) / sizeof(rules[0]), rules};
	return call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0);
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* What the kernel puts on a program's stack: argc, argv and 0, the environment and 0. */
__attribute__((noreturn, used)) void run(const long *stack)
{
	const char *environment = (const char *)stack[1 + stack[0] + 1];
	/* Blocked signals wait to be taken one at a time: no handler, no race. */
	unsigned long set = BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGCHLD);
	call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof(set));
	if (environment && same(environment, "KNARR_PAUSE=confined") && confine() != 0)
		call(SYS_exit_group, 1, 0, 0, 0);
	for (;;) {
		long sig = call(SYS_rt_sigtimedwait, (long)&set, 0, 0, sizeof(set));
		if (sig == SIGINT || sig == SIGTERM)
			break;
		while (call(SYS_wait4, -1, 0, WNOHANG, 0) > 0)
			;
	}
	call(SYS_exit_group, 0, 0, 0, 0);
	__builtin_unreachable();
}
