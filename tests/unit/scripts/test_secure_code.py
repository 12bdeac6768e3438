"""The rules about secrets and peers: what breaks each of them, and what only looks like it."""

import pytest
from scripts.secure_code import breaches_of

BAD = {
    "compare": [
        "said == self.password",
        "if stored_key != made: pass",
        "return secret.reveal() == given",
        "api_key.decode() == said",
    ],
    "tell": [
        "log_.warning('failed', password=password)",
        "log_.limited('login').info('failed', said=auth_bytes)",
        "_log.debug(f'{user} {secret}')",
        "print(token)",
        "click.echo(f'made {api_key}')",
        "raise ValueError(f'wrong password {password!r}')",
        "log_.info('x', who=key.secret.reveal())",
        "logging.error('x', credential)",
    ],
    "unverified": [
        "context.verify_mode = ssl.CERT_NONE",
        "context.check_hostname = False",
        "ssl._create_unverified_context()",
        "httpx.get(url, verify=False)",
        "context.minimum_version = ssl.TLSVersion.TLSv1_1",
    ],
    "yaml": ["yaml.load(text)", "yaml.load(text, yaml.Loader)", "yaml.unsafe_load(text)", "yaml.full_load(text)"],
    "shell": ["subprocess.run(words, shell=True)", "os.system(words)", "subprocess.Popen(words, shell=wanted)"],
    "code": ["import pickle", "from marshal import loads", "eval(said)", "exec(said)"],
}
GOOD = (
    "hmac.compare_digest(password, said)",
    "if password == '': pass",
    "if token is None: pass",
    "if password_file == path: pass",
    "if scheme == Kind.TOKEN: pass",
    "log_.info('changed', has_password=True, user=user)",
    "log_.info('loaded', file=key.password_file)",
    "raise ValueError(f'no such file as {password_file}')",
    "raise ValueError('wrong password')",
    "context.check_hostname = wanted",
    "yaml.safe_load(text)",
    "yaml.load(text, OurLoader)",
    "yaml.load(text, yaml.BaseLoader)",
    "subprocess.run(words, shell=False)",
    "re.compile(pattern)",
    "model.eval()",
)


@pytest.mark.parametrize(("rule", "source"), [(rule, source) for rule, sources in BAD.items() for source in sources])
def test_what_breaks_a_rule(rule: str, source: str) -> None:
    wrapped = f"def function():\n    {source}\n"
    assert {breach.rule for breach in breaches_of(wrapped, "x.py")} == {rule}
    assert all(breach.line == 2 for breach in breaches_of(wrapped, "x.py"))


@pytest.mark.parametrize("source", GOOD)
def test_what_only_looks_like_it(source: str) -> None:
    assert not list(breaches_of(source, "x.py"))
