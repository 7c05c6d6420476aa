"""Chat templates that attack the process that renders them, by name."""

NINES = "9" * 9

HOSTILE = {
    # Ways to Python's own objects.
    "class of a tuple": "{{ ().__class__ }}",
    "walk to all classes": "{{ ().__class__.__mro__[1].__subclasses__() }}",
    "walk by subscript": "{{ ''['__class__']['__mro__'] }}",
    "walk by attr filter": "{{ ''|attr('__class__') }}",
    "walk by attr filter in parts": "{{ ''|attr('__cla' ~ 'ss__') }}",
    "walk by map": "{{ [messages]|map(attribute='__class__')|list }}",
    "walk by groupby": "{{ ['a']|groupby('__class__') }}",
    "walk by selectattr": "{{ [1]|selectattr('__class__.__mro__')|list }}",
    "globals of cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "globals of joiner": "{{ joiner.__init__.__globals__ }}",
    "globals of namespace": "{{ namespace.__init__.__globals__ }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "globals of range": "{{ range.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__['os'].system('id') }}",
    "lipsum bomb": "{{ lipsum(n=99999999) }}",
    "self": "{{ self.__init__.__globals__ }}",
    "self context": "{{ self._TemplateReference__context }}",
    "macro internals": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "macro environment": "{% macro m() %}{% endmacro %}{{ m._environment.filters }}",
    "loop internals": "{% for x in [1] %}{{ loop._iterator.__class__ }}{% endfor %}",
    "generator frame": "{{ ([1]|map('upper')).gi_frame.f_globals }}",
    "method function": "{{ ''.join.__self__ }}",
    "undefined internals": "{{ nothing.__init__.__globals__ }}",
    "dict class": "{{ dict.__base__ }}",
    "namespace abuse": "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
    "mutating the messages": "{{ messages.append(1) }}",
    "mutating a message": "{{ messages[0].update(role='system') }}",
    # Format strings.
    "format attribute": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "format_map attribute": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format by map": "{{ ['{0.__class__}']|map('format', 1)|map('attr', '__class__')|list }}",
    "format taken apart": "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "format width": "{{ '{:>" + NINES + "}'.format(1) }}",
    "format computed width": "{{ '{:{w}}'.format(1, w='" + NINES + "') }}",
    "percent width": "{{ '%" + NINES + "d' % 1 }}",
    "percent computed width": "{{ '%*d' % (" + NINES + ", 1) }}",
    "format filter width": "{{ '%" + NINES + "d'|format(1) }}",
    # Time.
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    "endless generator join": "{% set l = range(9999)|list %}"
    "{% for a in l %}{% for b in l %}{% set x = l|join|length %}{% endfor %}{% endfor %}",
    "sorting again and again": "{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% set x = range(9999)|sort(reverse=true) %}{% endfor %}{% endfor %}",
    "sum of loops": "{% for a in range(9999) %}{% set x = range(9999)|map('string')|list %}"
    "{% endfor %}",
    "urlize again and again": "{% set x = 'www.a.b(' * 9999 %}"
    "{% for a in range(9999) %}{% set y = x|urlize %}{% endfor %}",
    "wordwrap again and again": "{% set x = 'a-' * 99999 %}"
    "{% for a in range(9999) %}{% set y = x|wordwrap(1) %}{% endfor %}",
    # Size.
    "range bomb": "{{ range(999999999)|list }}",
    "negative range bomb": "{{ range(0, -999999999, -1)|list }}",
    "huge output": "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    "just too much output": "{{ 'x' * 1048700 }}",
    "string multiplication": "{{ 'x' * 10000000000 }}",
    "multiplication from the left": "{{ 10000000000 * 'x' }}",
    "list multiplication": "{{ [0] * 10000000000 }}",
    "repeated multiplication": "{{ ('x' * 99999) * 99999 }}",
    "exponent": "{{ 10 ** 9999999999 }}",
    "exponent by variable": "{% set a = 99999 %}{{ a ** a ** a }}",
    "growing integers": "{% set ns = namespace(x=10) %}"
    "{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "doubling by tilde": "{% set ns = namespace(x='a') %}"
    "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling by plus": "{% set ns = namespace(x='a') %}"
    "{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling a list": "{% set ns = namespace(x=[1]) %}"
    "{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "replace bomb": "{% set ns = namespace(x='aa') %}"
    "{% for i in range(99) %}{% set ns.x = ns.x|replace('a', 'aaaa') %}{% endfor %}",
    "center": "{{ 'x'|center(1000000000) }}",
    "center by method": "{{ 'x'.center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ '1'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'x\ny'|indent(1000000000) }}",
    "wordwrap": "{{ ('x' * 9999)|wordwrap(1, wrapstring='y' * 99999) }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "tojson indent": "{{ [1]|tojson(indent=1000000000) }}",
    "bytes of an integer": "{{ (1).to_bytes(1000000000, 'big') }}",
    "date format": "{{ strftime_now('%c' * 99999) }}",
    # Depth.
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "recursive block": "{% block b %}{{ self.b() }}{% endblock %}",
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 20000 + "]" * 20000 + " }}",
    "deep nots": "{{ " + "not " * 20000 + "1 }}",
    "deep ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "deep attributes": "{{ messages" + ".a" * 20000 + " }}",
    "long sum": "{{ 1" + "+1" * 50000 + " }}",
    # Other files.
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "from import": "{% from 'os' import system %}",
    "extends": "{% extends 'base' %}",
    "include by variable": "{% include messages[0].content %}",
    # Nonsense.
    "undefined attribute": "{{ nothing.attribute }}",
    "undefined call": "{{ nothing() }}",
    "unknown filter": "{{ 1|nothing }}",
    "unknown test": "{{ 1 is nothing }}",
    "unknown tag": "{% nothing %}",
    "syntax error": "{% if messages %}",
    "stray end": "{% endfor %}",
    "null byte in code": "{{ \0 }}",
    "division by zero": "{{ 1 / 0 }}",
    "wrong types": "{{ 'a' + 1 }}",
    "lone surrogate": "{{ '\\ud800' }}",
    "megabyte of source": "x" * 2**20,
    "many small expressions": "{{ 1 }}" * 60000,
    "own exception": "{{ raise_exception('no') }}",
    "own exception without words": "{{ raise_exception() }}",
    "own exception of a megabyte": "{{ raise_exception('x' * 1000000) }}",
}
